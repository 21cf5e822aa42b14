"""Tables of single layers: seconds over a grid of input and output channels, measured here or kept from last time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from depl0.analysis.propagate import LayerUse
from depl0.costs.latency_table import LayerTable
from depl0.latency.cache import keep, machine, recall
from depl0.latency.calls import Call
from depl0.latency.measure import interleave, undisturbed

SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""where the grid has its points, as shares of the dense layer's channels; the first is a single channel"""

VERSION = 3
"""of the way in which tables are measured: those of another one are not used"""


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
    seconds = _checked(recall(key), len(out_grid), len(in_grid))
    if seconds is None:
        seconds = _measured(use, call, out_grid, in_grid)
        keep(key, seconds)
    return LayerTable(out_grid, in_grid, tuple(map(tuple, seconds)))


def _grid(size: int, unit: int = 1) -> tuple[int, ...]:
    """Return numbers of channels from one unit to all.

    >>> _grid(64), _grid(3), _grid(32, unit=8)
    ((1, 8, 16, 32, 48, 64), (1, 2, 3), (8, 16, 24, 32))
    """
    units = size // unit
    return tuple(sorted({max(1, round(share * units)) * unit for share in SHARES}))


def _measured(use: LayerUse, call: Call, out_grid: Sequence[int], in_grid: Sequence[int]) -> list[list[float]]:
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


def _checked(value: object, rows: int, columns: int) -> list[list[float]] | None:
    """Return a table that was kept, if it is one."""
    if not isinstance(value, list) or len(value) != rows:
        return None
    for row in value:
        if not isinstance(row, list) or len(row) != columns:
            return None
        if not all(isinstance(entry, float) and 0 < entry < 1e6 for entry in row):
            return None
    return value
