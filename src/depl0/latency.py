"""Seconds of a network on this machine, measured side by side with another's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depl0.modes import evaluation_mode


@dataclass(frozen=True)
class Latency:
    """Seconds of one forward pass: the median, and half of the middle 50 % of the measurements."""

    median: float
    spread: float


def measure_latency(
    models: Mapping[str, nn.Module], inputs: Sequence[Tensor], repeats: int = 15, seconds: float = 1.0
) -> dict[str, Latency]:
    """Time several networks on the same input, interleaved, so that the machine's moods fall on all of them alike.

    Stops after ``repeats`` rounds, or after ``seconds`` if at least five rounds are done. The networks' modes are kept.
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    with evaluation_mode(*models.values()), torch.inference_mode():
        for model in models.values():
            model(*inputs)  # warm-up
        start = time.perf_counter()
        for round_number in range(max(repeats, 2)):
            for name, model in models.items():
                times[name].append(_seconds(model, inputs))
            if round_number >= 4 and time.perf_counter() - start > seconds:
                break
    return {name: _summary(values) for name, values in times.items()}


def _seconds(model: nn.Module, inputs: Sequence[Tensor]) -> float:
    device = inputs[0].device
    start = time.perf_counter()
    model(*inputs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _summary(values: list[float]) -> Latency:
    low, middle, high = statistics.quantiles(values, n=4)
    return Latency(middle, (high - low) / 2)
