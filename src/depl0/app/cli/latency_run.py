"""The measurements of ``depl0 latency``: networks or a file, timed side by side on one device."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depl0.app.cli.latency_subject import Subject, file_subject
from depl0.errors import InputError
from depl0.latency.cache import machine
from depl0.latency.compare import Omitted, Timing, compare


def measured(
    name: str, subject: Subject | None, backends: list[str], batches: list[int], device: torch.device, seconds: float
) -> dict[str, Any]:
    """Return what was measured of some networks; without them, of the file of this name."""
    networks: dict[str, Any] = {}
    if subject is None:
        timings, omitted = file_subject(Path(name), batches, device, seconds)
    else:
        networks, timings, omitted = _compare(subject, backends, batches, device, seconds)
    return {
        "subject": name,
        **machine(device),
        "clock": "processor time" if device.type == "cpu" and torch.get_num_threads() == 1 else "wall clock",
        "networks": networks,
        "timings": [_entry(timing) for timing in timings],
        "skipped": [dataclasses.asdict(entry) for entry in omitted],
    }


def _compare(
    subject: Subject, backends: list[str], batches: list[int], device: torch.device, seconds: float
) -> tuple[dict[str, Any], list[Timing], list[Omitted]]:
    networks = {name: network.to(device) for name, network in subject.networks.items()}
    timings, omitted = compare(
        networks,
        backends,
        batches,
        lambda size: torch.randn(size, *subject.image_shape, generator=torch.Generator().manual_seed(0)).to(device),
        _to_onnx,
        torch.get_num_threads(),
        seconds=seconds,
    )
    return subject.costs(), timings, omitted


def _to_onnx(network: nn.Module, inputs: Tensor) -> bytes:
    from depl0.export.onnx import export_onnx  # torch.onnx is slow to import

    print(f"exporting for ONNX Runtime, batch {len(inputs)} …", file=sys.stderr)
    with torch.inference_mode(False):  # recording a graph needs ordinary tensors
        return export_onnx(network, inputs.clone())


def _entry(timing: Timing) -> dict[str, Any]:
    return {
        "backend": timing.backend,
        "batch": timing.batch,
        "network": timing.network,
        "median_ms": 1000 * timing.median,
        "spread_ms": 1000 * timing.spread,
        "best_ms": 1000 * timing.best,
        "rounds": timing.rounds,
        "speedup": None if timing.speedup is None else dataclasses.asdict(timing.speedup),
    }


def device_called(name: str) -> torch.device:
    """Return a device, or refuse what is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {name!r} instead.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda, but torch sees no CUDA device.", hint="use --device cpu.")
    return device


@contextmanager
def threads_set(number: int) -> Iterator[None]:
    """Let torch use so many threads meanwhile; 0: as many as it is set to."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
