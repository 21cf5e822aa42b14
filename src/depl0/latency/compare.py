"""Several networks on several backends and batch sizes, always side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depl0.host.network import evaluation_mode
from depl0.latency.backends import BACKENDS, Call, Skipped, ToOnnx
from depl0.latency.measure import Speedup, interleave, speedup, summarise


@dataclass(frozen=True)
class Timing:
    """One network on one backend with one batch size."""

    backend: str
    batch: int
    network: str
    median: float
    spread: float
    """half of the middle 50 % of the rounds"""
    best: float
    """undisturbed: the mean of the fastest fifth of the rounds"""
    rounds: int
    speedup: Speedup | None
    """how many times as fast as the first network, with its interval; None for itself"""


@dataclass(frozen=True)
class Omitted:
    """What could not be measured, and why."""

    backend: str
    batch: int
    reason: str


def compare(
    networks: Mapping[str, nn.Module],
    backends: Sequence[str],
    batches: Sequence[int],
    make_inputs: Callable[[int], Tensor],
    to_onnx: ToOnnx,
    threads: int,
    *,
    repeats: int = 200,
    seconds: float = 10.0,
) -> tuple[list[Timing], list[Omitted]]:
    """Time all networks on each backend and batch size, interleaved; the first is what others are compared to."""
    timings: list[Timing] = []
    omitted: list[Omitted] = []
    with evaluation_mode(*networks.values()), torch.inference_mode():
        for batch in batches:
            inputs = make_inputs(batch)
            for backend in backends:
                try:
                    calls = _calls(networks, backend, inputs, to_onnx, threads)
                except Skipped as skipped:
                    omitted.append(Omitted(backend, batch, str(skipped)))
                    continue
                timings += time_calls(calls, backend, batch, inputs.device, repeats, seconds)
    return timings, omitted


def time_calls(
    calls: Mapping[str, Call], backend: str, batch: int, device: torch.device, repeats: int, seconds: float
) -> list[Timing]:
    """Time calls interleaved; the first is the reference."""
    times = interleave(calls, device, repeats, seconds)
    first = next(iter(times))
    timings = []
    for name, values in times.items():
        found = summarise(values)
        faster = None if name == first else speedup(times[first], values)
        timings.append(Timing(backend, batch, name, found.median, found.spread, found.best, len(values), faster))
    return timings


def _calls(
    networks: Mapping[str, nn.Module], backend: str, inputs: Tensor, to_onnx: ToOnnx, threads: int
) -> dict[str, Call]:
    return {name: BACKENDS[backend](model, inputs, to_onnx, threads) for name, model in networks.items()}
