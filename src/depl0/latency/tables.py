"""Seconds of a network as a function of its channels: tables of single layers, fitted to measurements of the whole.

Every convolution and linear layer is called again on its own with fewer channels, over a grid of numbers of input and
output channels. In a network a layer does not take what it takes alone: weights come from further away, and norms,
activations and additions take their time. So the network itself is measured at some widths, and three numbers are
fitted to that: a factor for the tables, seconds per element that layers give, and a constant. Everything is kept in the
user's cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0._util.optional import require
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import LayerUse
from depl0.costs.latency_table import Calibration, ExpectedLatency, LayerTable, TimedUse
from depl0.host.calls import TRANSPOSED, CallRecorder
from depl0.host.calls import Call as HostCall
from depl0.host.copies import private_copy
from depl0.host.inputs import ExampleInputs
from depl0.latency.cache import keep, machine, recall
from depl0.latency.measure import interleave, time_networks, undisturbed
from depl0.surgery.extraction import fold_and_cut
from depl0.surgery.slicing import kept_gates

WIDTHS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1)
"""mean shares of channels at which the whole network is measured"""

DENSE_WEIGHT = 5.0
"""how much more the dense network counts in the fit: budgets are shares of it"""
SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""where the grid has its points, as shares of the dense layer's channels; the first is a single channel"""

VERSION = 3
"""of the way in which tables are measured: those of another one are not used"""


# -- the whole network -----------------------------------------------------------------------------------------------


def expected_latency(plan: Plan, host: nn.Module, example: ExampleInputs) -> ExpectedLatency:
    """Return the expected latency of a network on the device that it is on, with as many threads as torch uses now."""
    example = example.on_device_of(host)
    timed = _timed_uses(plan, host, example)
    alone = ExpectedLatency(plan, timed, Calibration())
    device = next(host.parameters()).device
    key = {"what": "network", "version": VERSION, **machine(device), "network": _fingerprint(plan, host, example)}
    calibration = _kept_calibration(recall(key))
    if calibration is None:
        calibration = _calibrated(plan, host, example, alone)
        keep(key, vars(calibration))
    return ExpectedLatency(plan, timed, calibration)


def _timed_uses(plan: Plan, host: nn.Module, example: ExampleInputs) -> list[TimedUse]:
    """Return the layers that were seen, with their tables; what was not seen is left to the calibration."""
    calls = record_calls(host, example)
    timed = []
    for use in plan.uses:
        waiting = calls.get(use.out_axis[0])
        if not waiting:
            continue
        call = waiting.pop(0)
        pruned_in = use.in_axis is not None and use.in_axis in plan.axes
        table = layer_table(use, call, pruned_in, use.out_axis in plan.axes)
        timed.append(TimedUse(use, table, call.output_elements // use.out_size))
    return timed


def _calibrated(plan: Plan, host: nn.Module, example: ExampleInputs, alone: ExpectedLatency) -> Calibration:
    kept = [_some_gates(plan, width) for width in WIDTHS]
    networks = {str(number): fold_and_cut(plan, host, gates.float(), gates)[0] for number, gates in enumerate(kept)}
    times = time_networks(networks, example, repeats=30, seconds=20.0)
    measured = [undisturbed(times[name]) for name in networks]
    features = []
    for gates in kept:
        layers, elements = alone.parts(gates.float())
        features.append([float(layers), float(elements), 1.0])
    weights = [(DENSE_WEIGHT if number == 0 else 1.0) / seconds for number, seconds in enumerate(measured)]
    return Calibration(*fit(features, measured, weights))


def _some_gates(plan: Plan, width: float) -> Tensor:
    """Return gates of which each group has about this share open, some groups more and some less."""
    rng = torch.Generator().manual_seed(round(1000 * width))
    is_open = torch.zeros(plan.num_gates, dtype=torch.bool)
    for group in plan.groups:
        spread = min(width, 1 - width) * (2 * torch.rand(1, generator=rng).item() - 1)
        is_open[group.offset : group.offset + max(1, round(group.size * (width + spread)))] = True
    return kept_gates(plan, is_open, torch.zeros(plan.num_gates))


def fit(features: list[list[float]], values: list[float], weights: list[float]) -> tuple[float, float, float]:
    """Return the weighted least-squares coefficients that are not negative.

    >>> fit([[1.0, 0.0, 1.0], [2.0, 1.0, 1.0], [4.0, 1.0, 1.0]], [3.0, 8.0, 12.0], [1.0, 1.0, 1.0])
    (2.0, 3.0, 1.0)
    """
    nnls = require("scipy.optimize", "scipy", "to fit latency to measurements").nnls
    rows, weight = np.array(features), np.array(weights)
    size = np.abs(rows).max(axis=0).clip(1e-30)  # seconds per element are tiny, and the solver's tolerance is absolute
    found, _ = nnls(rows / size * weight[:, None], np.array(values) * weight)
    scale, per_element, constant = (float(f"{value:.9g}") for value in found / size)
    return scale, per_element, constant


def _fingerprint(plan: Plan, host: nn.Module, example: ExampleInputs) -> str:
    digest = hashlib.sha256(type(host).__name__.encode())
    for name, parameter in host.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
    for leaf in example.leaves():
        digest.update(repr((tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf).encode())
    for axis, gates in plan.axes.items():
        digest.update(repr(axis).encode() + gates.numpy().tobytes())
    return digest.hexdigest()


def _kept_calibration(value: Any) -> Calibration | None:
    try:
        numbers = Calibration(**value)
    except TypeError:
        return None
    fine = all(isinstance(number, float) and number >= 0 for number in vars(numbers).values())
    return numbers if fine else None


# -- single layers ---------------------------------------------------------------------------------------------------


def layer_table(use: LayerUse, call: Call, pruned_in: bool, pruned_out: bool) -> LayerTable:
    """Return the table of one call. Axes that no gate governs have one point."""
    unit = use.out_size // call.groups if use.in_axis is None else use.groups
    out_grid = _grid(use.out_size, unit) if pruned_out else (use.out_size,)
    in_grid = (1,) if use.in_axis is None else _grid(use.in_size) if pruned_in else (use.in_size,)
    key = {
        "what": "layer",
        "version": VERSION,
        **machine(call.device),
        **call.key(),
        "out": list(out_grid),
        "in": list(in_grid),
    }
    seconds = _checked_table(recall(key), len(out_grid), len(in_grid))
    if seconds is None:
        seconds = _measured_table(use, call, out_grid, in_grid)
        keep(key, seconds)
    return LayerTable(out_grid, in_grid, tuple(map(tuple, seconds)))


def _grid(size: int, unit: int = 1) -> tuple[int, ...]:
    """Return numbers of channels from one unit to all.

    >>> _grid(64), _grid(3), _grid(32, unit=8)
    ((1, 8, 16, 32, 48, 64), (1, 2, 3), (8, 16, 24, 32))
    """
    units = size // unit
    return tuple(sorted({max(1, round(share * units)) * unit for share in SHARES}))


def _measured_table(use: LayerUse, call: Call, out_grid: Sequence[int], in_grid: Sequence[int]) -> list[list[float]]:
    calls = {f"{out} {into}": call.smaller(use, out, into) for out, into in product(out_grid, in_grid)}
    with torch.inference_mode():
        times = interleave(calls, call.device, repeats=20, seconds=0.5)
    seconds = [[undisturbed(times[f"{out} {into}"]) for into in in_grid] for out in out_grid]
    return monotone(seconds)


def monotone(seconds: list[list[float]]) -> list[list[float]]:
    """Let more channels never take less time: noise and odd kernels must not make a gate's price negative.

    >>> monotone([[1.0, 3.0, 2.0]])
    [[1.0, 2.5, 2.5]]
    """
    values = torch.tensor(seconds, dtype=torch.float64)
    for dim in (0, 1):
        from_below = values.cummax(dim).values
        from_above = values.flip(dim).cummin(dim).values.flip(dim)
        values = (from_below + from_above) / 2
    result: list[list[float]] = values.tolist()
    return result


def _checked_table(value: object, rows: int, columns: int) -> list[list[float]] | None:
    """Return a table that was kept, if it is one."""
    if not isinstance(value, list) or len(value) != rows:
        return None
    for row in value:
        if not isinstance(row, list) or len(row) != columns:
            return None
        if not all(isinstance(entry, float) and 0 < entry < 1e6 for entry in row):
            return None
    return value


# -- calls -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call as it was made."""

    function: Callable[..., Tensor]
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    has_bias: bool
    settings: dict[str, Any]
    output_elements: int
    device: torch.device
    dtype: torch.dtype

    @property
    def groups(self) -> int:
        """Return the number of groups of a convolution."""
        return int(self.settings.get("groups", 1))

    def key(self) -> dict[str, Any]:
        """Return what the call is, as plain data."""
        return {
            "function": getattr(self.function, "__name__", str(self.function)),
            "input": list(self.input_shape),
            "weight": list(self.weight_shape),
            "bias": self.has_bias,
            "settings": {name: repr(value) for name, value in sorted(self.settings.items())},
            "dtype": str(self.dtype),
        }

    def smaller(self, use: LayerUse, out: int, into: int) -> Callable[[], Tensor]:
        """Return the same call with so many output and input channels, on random numbers.

        A grouped convolution that loses whole groups has the inputs that follow from ``out``.
        """
        input_shape, weight_shape, settings = list(self.input_shape), list(self.weight_shape), dict(self.settings)
        channel_dim = len(input_shape) - 1 if self.function is F.linear else 1
        if use.in_axis is None:
            groups = max(1, self.groups * out // use.out_size)
            settings["groups"] = groups
            weight_shape[use.out_axis[1]] = self.weight_shape[use.out_axis[1]] * groups // self.groups
            input_shape[channel_dim] = self.input_shape[channel_dim] * groups // self.groups
        else:
            weight_shape[use.out_axis[1]], weight_shape[use.in_axis[1]] = out, into
            input_shape[channel_dim] = into * use.groups
        transposed = self.function.__name__ in TRANSPOSED
        outputs = weight_shape[1] * settings.get("groups", 1) if transposed else weight_shape[0]
        rng = torch.Generator().manual_seed(0)
        x, weight, bias = (
            torch.randn(shape, generator=rng).to(self.device, self.dtype)
            for shape in (input_shape, weight_shape, [outputs])
        )
        return lambda: self.function(x, weight, bias if self.has_bias else None, **settings)


def record_calls(host: nn.Module, example: ExampleInputs) -> dict[str, list[Call]]:
    """Run a private copy of the host once, in evaluation mode; return the calls by the name of the weight, in order."""
    copy = private_copy(host).eval().requires_grad_(False)
    calls: dict[str, list[Call]] = {}

    def note(call: HostCall, result: Any) -> None:
        if call.weight is None:
            return
        given = call.arguments
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        if call.name == "linear" or x.dim() == weight.dim():  # batched
            shapes = tuple(x.shape), tuple(weight.shape)
            seen = Call(call.function, *shapes, bias is not None, given, result.numel(), x.device, x.dtype)
            calls.setdefault(call.weight, []).append(seen)

    example = example.on_device_of(host)
    with torch.no_grad(), CallRecorder(copy, after=note):
        copy(*example.args, **example.kwargs)
    return calls
