"""Run time of a network on this machine, in seconds, measured side by side with another's.

On the CPU with one thread, CPU time is measured, so that other programs are not counted. With several threads, and on
other devices, wall-clock time is measured.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode


@dataclass(frozen=True)
class Latency:
    """Seconds of one forward pass: the median, half of the interquartile range, and the mean of the fastest fifth."""

    median: float
    spread: float
    best: float


@dataclass(frozen=True)
class Speedup:
    """Speed-up of one network over another, with 95 % confidence between ``low`` and ``high``."""

    ratio: float
    low: float
    high: float

    @property
    def is_measurable(self) -> bool:
        """Return True if the difference is large enough to be reproducible with the same two networks."""
        return self.low > 1 + SAME or self.high < 1 - SAME

    def in_words(self) -> str:
        """Return the speed-up and its interval as text.

        >>> Speedup(1.5, 1.4, 1.6).in_words(), Speedup(1.03, 0.9, 1.1).in_words()
        ('1.50x as fast (1.40 to 1.60)', 'no measurable difference (0.90 to 1.10)')
        """
        said = f"{self.ratio:.2f}x as fast" if self.is_measurable else "no measurable difference"
        return f"{said} ({self.low:.2f} to {self.high:.2f})"


RESAMPLED = 1000
"""Number of bootstrap samples for the interval of a speed-up."""
SAME = 0.02
"""Relative difference between two copies of one network, caused by their addresses in memory."""


def time_networks(
    models: Mapping[str, nn.Module], inputs: Sequence[Tensor] | ExampleInputs, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Return the seconds of every round, for each network, on the same input.

    They are interleaved, so that noise affects all of them equally. Stops after ``repeats`` rounds, or after
    ``seconds`` if at least five rounds are done. The networks' modes are kept.
    """
    example = inputs if isinstance(inputs, ExampleInputs) else ExampleInputs(tuple(inputs), {})
    device = next(leaf.device for leaf in example.leaves() if isinstance(leaf, Tensor))
    calls = {name: _call(model, example) for name, model in models.items()}
    with evaluation_mode(*models.values()), torch.inference_mode():
        return interleave(calls, device, repeats, seconds)


def interleave(
    calls: Mapping[str, Callable[[], object]], device: torch.device, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Run all calls in turn, one warm-up and then several rounds; return the seconds of every round.

    Their order changes from round to round, because a call after a large network starts with cold caches.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # warm-up
    clock, start = clock_for(device), time.perf_counter()
    order, rng = list(calls), random.Random(0)
    for round_number in range(max(repeats, 2)):
        rng.shuffle(order)
        for name in order:
            times[name].append(_seconds(calls[name], device, clock))
        if round_number >= 4 and time.perf_counter() - start > seconds:
            break
    return times


def summarise(values: Sequence[float]) -> Latency:
    """Return median, spread and the mean of the fastest fifth."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Latency(middle, (high - low) / 2, undisturbed(values))


def undisturbed(values: Sequence[float]) -> float:
    """Return the time without disturbances: the mean of the fastest fifth.

    On a busy machine it is more reproducible than the median; on an idle one both are equal.

    >>> undisturbed([5.0, 1.0, 9.0, 7.0, 3.0, 2.0, 8.0, 6.0, 4.0, 10.0])
    1.5
    """
    return statistics.mean(sorted(values)[: max(1, len(values) // 5)])


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the ratio of two run times, each the mean of its fastest fifth."""
    return undisturbed(numerator) / undisturbed(denominator)


def speedup(reference: Sequence[float], seconds: Sequence[float]) -> Speedup:
    """Return the speed-up of a network, from rounds in which both were timed.

    The ratio is that of the two medians, the milliseconds that tables print. Its interval is that of the same ratio
    over resampled rounds (the percentile bootstrap, always with the same samples), widened if necessary to include the
    ratio. Both times of a round stay together, because a disturbance may have affected both.

    >>> speedup([2.0, 2.2, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0], [1.0] * 8)
    Speedup(ratio=2.0, low=2.0, high=2.2)
    """
    pairs = torch.tensor([reference, seconds], dtype=torch.float64)  # (2, rounds)
    rounds = pairs.shape[1]
    rng = torch.Generator().manual_seed(0)
    drawn = pairs[:, torch.randint(rounds, (RESAMPLED, rounds), generator=rng)]  # (2, resampled, rounds)
    before, after = _median(torch.cat([pairs[:, None], drawn], dim=1))
    found = before / after
    ratio = float(found[0])
    low, high = torch.quantile(found[1:], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Speedup(ratio, min(low, ratio), max(high, ratio))


def _median(values: Tensor) -> Tensor:
    """Return the median over the last dimension, the mean of the middle two for an even number."""
    ordered, middle = values.sort().values, values.shape[-1] // 2
    return (ordered[..., middle] + ordered[..., -middle - 1]) / 2


def _call(model: nn.Module, example: ExampleInputs) -> Callable[[], object]:
    return lambda: model(*example.args, **example.kwargs)


def clock_for(device: torch.device, threads: int | None = None) -> Callable[[], float]:
    """Return the clock for this number of threads (default: torch's setting): CPU time if it is available."""
    alone = (torch.get_num_threads() if threads is None else threads) == 1
    return time.thread_time if alone and device.type == "cpu" else time.perf_counter


def _seconds(call: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


# -- the machine -----------------------------------------------------------------------------------------------------


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
