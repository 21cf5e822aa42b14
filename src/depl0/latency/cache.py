"""Measurements that are kept: small JSON files in the user's cache folder, each named after what was measured."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from depl0._util.io import atomic_write, cache_folder, read_json


def machine(device: torch.device) -> dict[str, Any]:
    """Return what a measurement depends on besides the layer: device, threads, and the version of torch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"device": f"{device.type} {name}", "threads": torch.get_num_threads(), "torch": torch.__version__}


def processor_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def recall(key: dict[str, Any]) -> Any | None:
    """Return what was kept under a key, or None. A file that cannot be read is as good as none."""
    try:
        kept = read_json(_path(key))
    except (OSError, ValueError, RecursionError):
        return None
    return kept["value"] if isinstance(kept, dict) and kept.get("key") == key and "value" in kept else None


def keep(key: dict[str, Any], value: Any) -> None:
    """Keep a value; where the folder cannot be written it is measured again next time."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (json.dumps({"key": key, "value": value}) + "\n").encode())
    except OSError:
        return


def _path(key: dict[str, Any]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return cache_folder() / "latency" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
