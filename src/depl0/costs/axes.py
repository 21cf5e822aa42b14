"""Axes as sums over gates: the building blocks of expected costs."""

from __future__ import annotations

from torch import Tensor

from depl0.analysis.plan import NO_GATE, Plan
from depl0.analysis.propagate import Axis


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
