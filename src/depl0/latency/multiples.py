"""Which multiples of channels pay on a device: a short measurement, kept in the user's cache folder.

Kernels work on 8, 16, 32 or more channels at a time, depending on the device and the precision. A convolution whose
channels are an odd multiple of N is timed beside two that miss it on either side; N pays where those take clearly more
time for their MACs. Odd multiples, so that what pays for 2·N is not taken for a gain of N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from depl0._util.optional import require
from depl0._util.random import isolated_random
from depl0.latency.backends import session_call
from depl0.latency.cache import keep, machine, recall
from depl0.latency.measure import interleave, undisturbed

Runtime: TypeAlias = Literal["pytorch", "onnxruntime"]
"""what a network is going to be run by"""
_CPU = torch.device("cpu")

MISSES: Mapping[int, tuple[tuple[int, int], ...]] = {
    8: ((56, 3), (72, 3)),
    16: ((80, 8), (112, 8)),
    32: ((96, 16), (160, 16)),
    64: ((192, 32),),
}
"""multiple → (channels, how far the others miss it)"""
PAYS = 0.08
"""more time for the MACs than this is worth a coarser choice of channels"""
FALLBACK = 8
"""pays where the measurement contradicts itself: nearly all devices like it"""
CHOICES = 4
"""multiples that a typical group must have room for"""


@dataclass(frozen=True)
class Multiples:
    """What a device likes."""

    paying: tuple[int, ...]
    gains: tuple[tuple[int, float], ...]
    """(multiple, time for the MACs that is saved)"""
    is_certain: bool
    """False: the measurement contradicted itself somewhere"""


def multiples_that_pay(device: torch.device, dtype: torch.dtype, runtime: Runtime = "pytorch") -> Multiples:
    """Return the multiples of channels that pay; kept for each device, precision, runtime and version.

    In ONNX Runtime, float files on the CPU are timed, which are what depl0 measures there.
    """
    key: dict[str, Any] = {"multiples": 2, **machine(device), "dtype": str(dtype)}
    if runtime == "onnxruntime":
        key = {"multiples": 2, **machine(_CPU), "dtype": str(torch.float32), "onnxruntime": version("onnxruntime")}
    known = _checked(recall(key))
    if known is None:
        known = decide(_times(device, dtype) if runtime == "pytorch" else _onnx_times())
        if known.is_certain:  # else it is worth another try on a quieter day
            keep(key, asdict(known))
    return known


def decide(times: Mapping[int, Sequence[float]]) -> Multiples:
    """Return which multiples pay, from the seconds of every round by number of channels.

    Even and odd rounds are looked at on their own: where they disagree, the measurement is no use.
    """
    paying, gains, is_certain = [], [], True
    for multiple, places in MISSES.items():
        halves = [_gain({width: list(seconds[i::2]) for width, seconds in times.items()}, places) for i in (0, 1)]
        gains.append((multiple, sum(halves) / 2))
        agree = (halves[0] >= PAYS) == (halves[1] >= PAYS)
        is_certain = is_certain and agree
        if halves[0] >= PAYS if agree else multiple == FALLBACK:
            paying.append(multiple)
    return Multiples(tuple(paying), tuple(gains), is_certain)


def with_room(paying: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return those multiples of which half of the groups, or more, have room for four; the largest first, then 1.

    >>> with_room([8, 32], [16, 32, 64]), with_room([8, 32], [256, 512]), with_room([16], [8, 8])
    ([8, 1], [32, 8, 1], [1])
    """
    middle = sorted(sizes)[len(sizes) // 2] if sizes else 0
    return [*(n for n in sorted(paying, reverse=True) if n * CHOICES <= middle), 1]


def _gain(times: Mapping[int, list[float]], places: Sequence[tuple[int, int]]) -> float:
    """Return how much more time those that miss a multiple take for their MACs, the mean over places.

    Geometric means, so that time that no kernel's block explains (a constant for each call) hardly counts.
    """

    def per_mac(width: int) -> float:
        return math.log(max(undisturbed(times[width]), 1e-12)) - 2 * math.log(width)

    gains = [(per_mac(at - off) + per_mac(at + off)) / 2 - per_mac(at) for at, off in places]
    return math.exp(sum(gains) / len(gains)) - 1


def _times(device: torch.device, dtype: torch.dtype) -> dict[int, list[float]]:
    widths = _widths()
    batch, size = (4, 14) if device.type == "cpu" else (64, 28)
    with isolated_random(0), torch.inference_mode():
        calls = {str(width): _convolution(width, batch, size, device, dtype) for width in widths}
        times = interleave(calls, device, repeats=40, seconds=4.0)
    return {width: times[str(width)] for width in widths}


def _onnx_times() -> dict[int, list[float]]:
    batch, size = 4, 14
    calls = {}
    for width in _widths():
        inputs = torch.randn(batch, width, size, size, generator=torch.Generator().manual_seed(0))
        calls[str(width)] = session_call(_convolution_file(width, batch, size), inputs, torch.get_num_threads())
    times = interleave(calls, _CPU, repeats=40, seconds=4.0)
    return {width: times[str(width)] for width in _widths()}


def _widths() -> list[int]:
    """Return the numbers of channels that are timed."""
    return sorted({width for places in MISSES.values() for at, off in places for width in (at - off, at, at + off)})


def _convolution(width: int, batch: int, size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    layer = torch.nn.Conv2d(width, width, 3, padding=1, bias=False).to(device=device, dtype=dtype)
    inputs = torch.randn(batch, width, size, size).to(device=device, dtype=dtype)
    return lambda: layer(inputs)


def _checked(value: object) -> Multiples | None:
    """Return what was kept, if it is that."""
    try:
        found = Multiples(**value)  # type: ignore[arg-type]
        gains = tuple((int(multiple), float(gain)) for multiple, gain in found.gains)
        paying = tuple(found.paying)
    except (TypeError, ValueError):
        return None
    if not set(paying) <= set(MISSES) or not isinstance(found.is_certain, bool):
        return None
    return Multiples(paying, gains, found.is_certain)


def _convolution_file(width: int, batch: int, size: int) -> bytes:
    """Return two 3x3 convolutions, one after the other, of so many channels on images of so many pixels a side.

    Two, because ONNX Runtime lays channels out in blocks between convolutions, and it is this that it likes multiples
    for.
    """
    onnx = require("onnx", "onnx", "to time layers in ONNX Runtime", extra="export")
    rng, helper = np.random.default_rng(0), onnx.helper
    shape, kind = [batch, width, size, size], onnx.TensorProto.FLOAT
    weights = [rng.standard_normal((width, width, 3, 3), np.float32) / width for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["input", "first"], ["between"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["between"], ["positive"]),
            helper.make_node("Conv", ["positive", "second"], ["output"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ],
        "convolutions",
        [helper.make_tensor_value_info("input", kind, shape)],
        [helper.make_tensor_value_info("output", kind, shape)],
        [onnx.numpy_helper.from_array(w, name) for w, name in zip(weights, ("first", "second"), strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())
