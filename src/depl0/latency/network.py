"""From tables of single layers to the seconds of a whole network.

In a network a layer does not take what it takes alone: weights come from further away, and norms, activations and
additions take their time. So the network itself is measured at some widths, and three numbers are fitted to that: a
factor for the tables, seconds per element that layers give, and a constant.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depl0._util.optional import require
from depl0.analysis.plan import Plan
from depl0.costs.latency_table import Calibration, ExpectedLatency, TimedUse
from depl0.host.inputs import ExampleInputs
from depl0.latency.cache import keep, machine, recall
from depl0.latency.calls import record_calls
from depl0.latency.layers import VERSION, layer_table
from depl0.latency.measure import time_networks, undisturbed
from depl0.surgery.extraction import fold_and_cut
from depl0.surgery.slicing import kept_gates

WIDTHS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1)
"""mean shares of channels at which the whole network is measured"""

DENSE_WEIGHT = 5.0
"""how much more the dense network counts in the fit: budgets are shares of it"""


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
