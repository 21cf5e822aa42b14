"""The cost of a network with binary gates, as sums over groups of gates and over pairs of groups.

With S(axis) = Σ open gates of an axis' positions, frozen ones included, parameters and MACs are

    cost = constant + Σ_terms c·S(left)·S(right)

which is bilinear. If each group has a few possible sets of gates, the cost splits into a number for each choice of a
group and a table for each pair of groups that share a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depl0.analysis.plan import NO_GATE, Plan
from depl0.analysis.propagate import Axis

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CostTerms:
    """The terms of one cost, in float64 on the CPU."""

    axis_of: Tensor
    gate_of: Tensor
    count: Tensor
    """One entry for each (axis, gate): the number of positions of the axis with this gate."""
    fixed: Tensor
    """Number of positions without a gate, for every axis."""
    pairs: Tensor
    """Cost of a pair of positions of two axes, half on each side of the diagonal."""
    constant: float

    def total(self, is_open: Tensor) -> float:
        """Return the cost with these gates open."""
        per_axis = self.fixed.index_add(0, self.axis_of, is_open.double()[self.gate_of] * self.count)
        return self.constant + float(torch.dot(per_axis, self.pairs.mv(per_axis)))


@dataclass(frozen=True)
class PairwiseCost:
    """The cost of a choice for every group: ``constant + Σ single[g][c_g] + Σ pairs[g][h][c_g, c_h]`` over g < h."""

    constant: float
    single: tuple[Array, ...]
    pairs: tuple[dict[int, Array], ...]
    """For every group, the tables of the groups it shares a layer with, of shape (own choices, their choices)."""


def pairwise(terms: CostTerms, choices: Sequence[tuple[Tensor, Tensor]], others: Tensor) -> PairwiseCost:
    """Split a cost by groups.

    Args:
        terms: the cost.
        choices: for every group its gates, and a boolean matrix (choices, gates) of the open gates.
        others: a mask over all gates: the open ones that belong to none of these groups.
    """
    axes, num_gates = len(terms.fixed), len(others)
    counts = torch.zeros(axes, num_gates, dtype=torch.float64)
    counts.index_put_((terms.axis_of, terms.gate_of), terms.count, accumulate=True)
    each, fixed = terms.pairs.numpy(), (terms.fixed + counts @ others.double()).numpy()
    both = 2 * each  # the matrix is symmetric
    positions = [(is_open.double() @ counts[:, gates].T).numpy() for gates, is_open in choices]  # (choices, axes)
    constant = terms.constant + float(fixed @ each @ fixed)
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
    """Stores axes as lists of (gate, multiplicity) plus a number of frozen positions.

    Axes with the same gates are stored once.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.axis_of: list[int] = []
        self.gate_of: list[int] = []
        self.count: list[float] = []
        self.fixed: list[float] = [1.0]
        self._members: list[dict[int, int]] = [{}]
        self._known: dict[bytes | int, int] = {1: 0}
        self.one = 0

    def index(self, axis: Axis, size: int) -> int:
        """Return the index of an axis; an axis without gates counts its size."""
        gates = self.plan.axes.get(axis)
        if gates is not None:
            return self.index_of(gates)
        return self._known.get(size) or self._new(size, size, None)

    def index_of(self, gates: Tensor) -> int:
        """Return the index of an axis with these gates."""
        key = gates.numpy().tobytes()
        return self._known.get(key) or self._new(key, len(gates), gates)

    def _new(self, key: bytes | int, size: int, gates: Tensor | None) -> int:
        self._known[key] = len(self.fixed)
        self._append(size, gates)
        return self._known[key]

    def _append(self, size: int, gates: Tensor | None) -> None:
        members: dict[int, int] = {}
        frozen = size
        if gates is not None:
            numbers, counts = gates.unique(return_counts=True)
            members = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
            frozen = members.pop(NO_GATE, 0)
        self.axis_of += [len(self.fixed)] * len(members)
        self.gate_of += members.keys()
        self.count += map(float, members.values())
        self._members.append(members)
        self.fixed.append(float(frozen))

    def same_gates(self, a: int, b: int) -> dict[int, int]:
        """Return the gates on both axes, with the number of pairs of positions that share them."""
        left, right = self._members[a], self._members[b]
        if len(right) < len(left):
            left, right = right, left
        return {gate: n * right[gate] for gate, n in left.items() if gate in right}
