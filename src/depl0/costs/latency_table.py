"""Expected seconds of a gated network, differentiable, from measured tables.

Every convolution and linear layer has a table: seconds over a grid of input and output channels, measured on one device
(:mod:`depl0.latency`). Between the grid's points it is interpolated bilinearly. With S(axis) = Σ p over an axis'
positions, as for MACs, and P(layer) the places (pixels) of a layer's output,

    E[seconds] ≈ scale·Σ_layers table(S(out), S(in)) + per_element·Σ_layers P(layer)·S(out) + constant

where the second sum stands for norms, activations and additions, whose time is in proportion to what flows through
them, and the constant for everything that pruning does not change. A table at the mean number of channels is not the
mean of the table, but the two agree where gates are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depl0._util.constants import ConstantTensors
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import LayerUse
from depl0.costs.axes import AxisTable


@dataclass(frozen=True)
class LayerTable:
    """Seconds of one layer: ``seconds[i][j]`` with ``out_grid[i]`` output and ``in_grid[j]`` input channels."""

    out_grid: tuple[int, ...]
    in_grid: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class TimedUse:
    """One call of a layer, with its table and the places of its output (pixels times batch)."""

    use: LayerUse
    table: LayerTable
    places: int


@dataclass(frozen=True)
class Calibration:
    """What makes tables of single layers the time of a whole network."""

    scale: float = 1.0
    per_element: float = 0.0
    constant: float = 0.0


class ExpectedLatency(ConstantTensors):
    """Expected seconds of one pass from the flat vector of open probabilities."""

    axis_of: Tensor
    gate_of: Tensor
    count: Tensor
    fixed: Tensor
    left: Tensor
    right: Tensor
    out_grid: Tensor
    in_grid: Tensor
    seconds: Tensor
    linear: Tensor

    def __init__(self, plan: Plan, timed: Sequence[TimedUse], calibration: Calibration) -> None:
        super().__init__()
        self.num_gates, self.calibration = plan.num_gates, calibration
        axes = AxisTable(plan)
        left, right, linear = [], [], []
        for entry in timed:
            use = entry.use
            left.append(axes.index(use.out_axis, use.out_size))
            right.append(axes.one if use.in_axis is None else axes.index(use.in_axis, use.in_size))
            linear.append(float(entry.places))
        out_grid, in_grid, seconds = _padded([entry.table for entry in timed])
        whole = {"axis_of": axes.axis_of, "gate_of": axes.gate_of, "left": left, "right": right}
        for name, numbers in whole.items():
            setattr(self, name, torch.tensor(numbers, dtype=torch.long))
        real = {"count": axes.count, "fixed": axes.fixed, "linear": linear}
        for name, values in real.items():
            setattr(self, name, torch.tensor(values, dtype=torch.float32))
        for name, tensor in {"out_grid": out_grid, "in_grid": in_grid, "seconds": seconds}.items():
            setattr(self, name, tensor.float())

    @property
    def dense(self) -> float:
        """Return the seconds with every gate open."""
        return float(self(torch.ones(self.num_gates, device=self.count.device)))

    def forward(self, open_probability: Tensor) -> Tensor:
        """Return expected seconds, differentiable."""
        layers, elements = self.parts(open_probability)
        c = self.calibration
        return c.scale * layers + c.per_element * elements + c.constant

    def parts(self, open_probability: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the tables say before calibration, and the number of elements that layers give."""
        channels = self._channels(open_probability)
        out, into = channels[self.left], channels[self.right]
        return self._interpolated(out, into)[0].sum(), torch.dot(self.linear, out)

    def value_and_gradient(self, open_probability: Tensor) -> tuple[Tensor, Tensor]:
        """Return expected seconds and their gradient in closed form, outside autograd."""
        channels = self._channels(open_probability)
        out, into = channels[self.left], channels[self.right]
        layers, by_out, by_in = self._interpolated(out, into)
        c = self.calibration
        value = c.scale * layers.sum() + c.per_element * torch.dot(self.linear, out) + c.constant
        by_axis = torch.zeros_like(channels).index_add(0, self.left, c.scale * by_out + c.per_element * self.linear)
        by_axis = by_axis.index_add(0, self.right, c.scale * by_in)
        return value, torch.zeros_like(open_probability).index_add(0, self.gate_of, by_axis[self.axis_of] * self.count)

    def _channels(self, open_probability: Tensor) -> Tensor:
        return self.fixed.index_add(0, self.axis_of, open_probability[self.gate_of] * self.count)

    def _interpolated(self, out: Tensor, into: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every layer's seconds, and their slopes by output and by input channels."""
        row, height, u = _place(self.out_grid, out)
        column, width, v = _place(self.in_grid, into)
        size = self.seconds.shape[2]
        flat = self.seconds.flatten(1)

        def corner(down: int, along: int) -> Tensor:
            return flat.gather(1, (row + down) * size + column + along)[:, 0]

        low_low, low_high, high_low, high_high = corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)
        low, high = torch.lerp(low_low, low_high, v), torch.lerp(high_low, high_high, v)
        by_in = torch.lerp(low_high - low_low, high_high - high_low, u) / width
        return torch.lerp(low, high, u), (high - low) / height, by_in


def _place(grid: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cell of each row's grid that a value is in (at a point: the left one), its width, the place in it."""
    cell = (torch.searchsorted(grid, values.detach()[:, None].contiguous()) - 1).clamp(0, grid.shape[1] - 2)
    low, high = grid.gather(1, cell)[:, 0], grid.gather(1, cell + 1)[:, 0]
    return cell, high - low, (values - low) / (high - low)


def _padded(tables: Sequence[LayerTable]) -> tuple[Tensor, Tensor, Tensor]:
    """Return all tables as one tensor: beyond a grid's end the seconds stay what they are at the end."""
    rows = max([2, *(len(table.out_grid) for table in tables)])
    columns = max([2, *(len(table.in_grid) for table in tables)])
    out_grid = torch.tensor([_longer(t.out_grid, rows) for t in tables], dtype=torch.float64).reshape(-1, rows)
    in_grid = torch.tensor([_longer(t.in_grid, columns) for t in tables], dtype=torch.float64).reshape(-1, columns)
    seconds = torch.zeros(len(tables), rows, columns, dtype=torch.float64)
    for number, table in enumerate(tables):
        values = torch.tensor(table.seconds, dtype=torch.float64)
        values = torch.cat([values, values[-1:].expand(rows - len(values), -1)])
        seconds[number] = torch.cat([values, values[:, -1:].expand(-1, columns - values.shape[1])], dim=1)
    return out_grid, in_grid, seconds


def _longer(grid: Sequence[int], length: int) -> list[int]:
    return [*grid, *(grid[-1] + extra for extra in range(1, length - len(grid) + 1))]
