"""The cost of a network with binary gates, as sums over groups of gates and over pairs of groups.

With S(axis) = Σ open gates of an axis' positions, frozen ones included, parameters and MACs are

    cost = constant + Σ_terms c·S(left)·S(right)

which is bilinear. If each group has a few possible sets of gates, the cost splits into a number for each choice of a
group and a table for each pair of groups that share a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depl0.analysis.plan import NO_GATE, Plan
from depl0.analysis.propagate import Axis

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PairwiseCost:
    """The cost of a choice for every group: ``constant + Σ single[g][c_g] + Σ pairs[g][h][c_g, c_h]`` over g < h."""

    constant: float
    single: tuple[Array, ...]
    pairs: tuple[dict[int, Array], ...]
    """For every group, the tables of the groups it shares a layer with, of shape (own choices, their choices)."""


def pairwise(
    terms: Mapping[str, Tensor], row: int, choices: Sequence[tuple[Tensor, Tensor]], others: Tensor
) -> PairwiseCost:
    """Split a cost by groups.

    Args:
        terms: the constants of an expected cost, in float64.
        row: the row of these constants: 0 for parameters, 1 for MACs.
        choices: for every group its gates, and a boolean matrix (choices, gates) of the open gates.
        others: a mask over all gates: the open ones that belong to none of these groups.
    """
    counts = torch.zeros(len(terms["fixed"]), len(others), dtype=torch.float64)
    counts.index_put_((terms["axis_of"], terms["gate_of"]), terms["count"], accumulate=True)
    each, fixed = terms["pairs"][row].numpy(), (terms["fixed"] + counts @ others.double()).numpy()
    both = 2 * each  # the matrix is symmetric
    positions = [(is_open.double() @ counts[:, gates].T).numpy() for gates, is_open in choices]  # (choices, axes)
    constant = float(terms["constants"][row]) + float(fixed @ each @ fixed)
    single = tuple(own @ (both @ fixed) + ((own @ each) * own).sum(1) for own in positions)
    pairs: tuple[dict[int, Array], ...] = tuple({} for _ in choices)
    for g, own in enumerate(positions):
        weighted = own @ both
        for h in range(g + 1, len(positions)):
            table = weighted @ positions[h].T
            if table.any():
                pairs[g][h], pairs[h][g] = table, table.T
    return PairwiseCost(constant, single, pairs)


class AxisTable:
    """Stores axes as lists of (gate, number of positions) plus a number of frozen positions.

    Axes with the same gates are stored once. ``one`` is an axis with a single frozen position.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.axis_of: list[int] = []
        self.gate_of: list[int] = []
        self.count: list[float] = []
        """One entry for each (axis, gate): the number of positions of the axis with this gate."""
        self.fixed: list[float] = []
        """Number of positions without a gate, for every axis."""
        self._positions: list[dict[int, int]] = []
        self._known: dict[bytes, int] = {}
        self.one = self.index_of(torch.tensor([NO_GATE]))

    def index(self, axis: Axis, size: int) -> int:
        """Return the index of an axis; without gates, all of its positions are frozen."""
        gates = self.plan.axes.get(axis)
        return self.index_of(torch.full((size,), NO_GATE) if gates is None else gates)

    def index_of(self, gates: Tensor) -> int:
        """Return the index of an axis with these gates."""
        key = gates.numpy().tobytes()
        if key not in self._known:
            index = self._known[key] = len(self.fixed)
            numbers, counts = gates.unique(return_counts=True)
            positions = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
            self.fixed.append(float(positions.pop(NO_GATE, 0)))
            self.axis_of += [index] * len(positions)
            self.gate_of += positions.keys()
            self.count += map(float, positions.values())
            self._positions.append(positions)
        return self._known[key]

    def same_gates(self, a: int, b: int) -> dict[int, int]:
        """Return the gates on both axes, with the number of pairs of positions that share them."""
        left, right = self._positions[a], self._positions[b]
        if len(right) < len(left):
            left, right = right, left
        return {gate: n * right[gate] for gate, n in left.items() if gate in right}
