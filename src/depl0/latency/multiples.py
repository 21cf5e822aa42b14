"""Which multiple of channels pays on a device: a short measurement, kept in the user's cache folder.

Kernels work on 8, 16, 32 or more channels at a time, depending on the device and the precision. A convolution of N
channels is timed beside two that miss the multiple on either side; N pays where those take clearly more time for their
MACs. Multiples are tried from the smallest up, as long as they pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from depl0.latency.cache import keep, machine, recall
from depl0.latency.measure import interleave, undisturbed

MISSES: Mapping[int, tuple[tuple[int, int], ...]] = {
    8: ((64, 3), (128, 3)),
    16: ((64, 8), (128, 8)),
    32: ((128, 16), (192, 16)),
    64: ((192, 32), (256, 32)),
}
"""multiple → (channels, how far the others miss it)"""
PAYS = 0.08
"""more time for the MACs than this is worth a coarser choice of channels"""
FALLBACK = 8
"""where the measurement says yes and no: what nearly all devices like"""
CHOICES = 4
"""multiples that a typical group must have room for"""


@dataclass(frozen=True)
class Multiple:
    """What a device likes."""

    channels: int
    """1: no multiple pays"""
    gains: tuple[tuple[int, float], ...]
    """(multiple, time for the MACs that is saved) for those that were tried"""
    is_certain: bool
    """False: the measurement was inconclusive"""


def multiple_that_pays(device: torch.device, dtype: torch.dtype) -> Multiple:
    """Return the largest multiple of channels that pays; measured once for each device, precision and version."""
    key: dict[str, Any] = {"multiples": 1, **machine(device), "dtype": str(dtype)}
    known = _checked(recall(key))
    if known is None:
        known = decide(_times(device, dtype))
        keep(key, asdict(known))
    return known


def decide(times: Mapping[int, Sequence[float]]) -> Multiple:
    """Return which multiple pays, from the seconds of every round by number of channels.

    Even and odd rounds are looked at on their own: where they disagree, the measurement is no use.
    """
    chosen, gains = 1, []
    for multiple, places in MISSES.items():
        halves = [_gain({width: list(seconds[i::2]) for width, seconds in times.items()}, places) for i in (0, 1)]
        gains.append((multiple, sum(halves) / 2))
        if min(halves) < PAYS <= max(halves):
            return Multiple(max(chosen, FALLBACK), tuple(gains), is_certain=False)
        if max(halves) < PAYS:
            break
        chosen = multiple
    return Multiple(chosen, tuple(gains), is_certain=True)


def for_sizes(multiple: int, sizes: Sequence[int]) -> int:
    """Return the multiple for groups of these sizes: half of them, or more, can choose between four numbers.

    >>> for_sizes(32, [16, 32, 64]), for_sizes(32, [256, 512]), for_sizes(16, [8, 8])
    (8, 32, 1)
    """
    middle = sorted(sizes)[len(sizes) // 2] if sizes else 0
    while multiple > 1 and multiple * CHOICES > middle:
        multiple = smaller(multiple)
    return multiple


def smaller(multiple: int) -> int:
    """Return the next multiple below: no power of two below 8 is of use.

    >>> smaller(64), smaller(8)
    (32, 1)
    """
    return multiple // 2 if multiple > 8 else 1


def _gain(times: Mapping[int, list[float]], places: Sequence[tuple[int, int]]) -> float:
    """Return how much more time those that miss a multiple take for their MACs, the mean over places.

    Geometric means, so that time that no kernel's block explains (a constant for each call) hardly counts.
    """

    def per_mac(width: int) -> float:
        return math.log(max(undisturbed(times[width]), 1e-12)) - 2 * math.log(width)

    gains = [(per_mac(at - off) + per_mac(at + off)) / 2 - per_mac(at) for at, off in places]
    return math.exp(sum(gains) / len(gains)) - 1


def _times(device: torch.device, dtype: torch.dtype) -> dict[int, list[float]]:
    widths = sorted({width for places in MISSES.values() for at, off in places for width in (at - off, at, at + off)})
    batch, size = (4, 14) if device.type == "cpu" else (64, 28)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        calls = {str(width): _convolution(width, batch, size, device, dtype) for width in widths}
        times = interleave(calls, device, repeats=40, seconds=4.0)
    return {width: times[str(width)] for width in widths}


def _convolution(width: int, batch: int, size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    layer = torch.nn.Conv2d(width, width, 3, padding=1, bias=False).to(device=device, dtype=dtype)
    inputs = torch.randn(batch, width, size, size).to(device=device, dtype=dtype)
    return lambda: layer(inputs)


def _checked(value: object) -> Multiple | None:
    """Return what was kept, if it is that."""
    try:
        found = Multiple(**value)  # type: ignore[arg-type]
        gains = tuple((int(multiple), float(gain)) for multiple, gain in found.gains)
    except (TypeError, ValueError):
        return None
    if found.channels not in (1, *MISSES) or not isinstance(found.is_certain, bool):
        return None
    return Multiple(found.channels, gains, found.is_certain)
