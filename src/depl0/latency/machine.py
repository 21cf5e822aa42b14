"""Description of the machine of a measurement."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """Return the environment of a measurement: device, threads, and the version of torch."""
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
