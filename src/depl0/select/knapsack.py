"""Choose one number of channels for every group, so that the sum of values is large within a budget.

Each choice of a group has a value and a cost. The cost also depends on the choices of other groups (the MACs of a layer
are its inputs times its outputs), so this is a quadratic multiple-choice knapsack problem. It is solved greedily, with
exchanges. First, groups step down to the choice that loses the least value per saved cost until the budget is met. Then
groups step up to the choice that gains the most value per cost while a step fits. After that, one group at a time moves
by a few steps, and the other groups are lowered or raised to fit the budget. At the end no further step fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depl0.costs.terms import Array, PairwiseCost

REACH = 2
"""Number of steps up and down that an exchange tries."""
SWEEPS = 6
"""Largest number of passes over all groups while exchanges find an improvement."""

Places = list[int]
"""The index of the choice of every group."""


@dataclass(frozen=True)
class Knapsack:
    """The values of every group's choices, their joint cost, and the budget. Values and costs rise with the choice."""

    values: tuple[Array, ...]
    tables: PairwiseCost
    budget: float

    def value(self, places: Places) -> float:
        """Return the value of these choices."""
        return sum(float(values[place]) for values, place in zip(self.values, places, strict=True))

    def cost(self, places: Places) -> float:
        """Return the cost of these choices."""
        total = self.tables.constant
        for group, place in enumerate(places):
            total += float(self.tables.single[group][place])
            total += sum(float(t[place, places[h]]) for h, t in self.tables.pairs[group].items() if h > group)
        return total

    def cost_changes(self, places: Places, group: int) -> Array:
        """Return the change of the cost with each choice of one group, while the other groups keep theirs."""
        own = self.tables.single[group].copy()
        for other, table in self.tables.pairs[group].items():
            own += table[:, places[other]]
        changes: Array = own - own[places[group]]
        return changes


def solve(problem: Knapsack, start: Places) -> Places | None:
    """Return the best choices that exchanges find from ``start``; None if the smallest choices exceed the budget.

    >>> values, widths = np.array([1.0, 1.5]), np.array([1.0, 2.0])
    >>> tables = PairwiseCost(0.0, (widths, 2 * widths), ({}, {}))
    >>> solve(Knapsack((values, 2 * values), tables, budget=5.0), [1, 1])
    [0, 1]
    """
    lowered = _lowered(problem, start)
    return None if lowered is None else _exchanged(problem, _filled(problem, lowered))


def _lowered(problem: Knapsack, start: Places, held: int = -1) -> Places | None:
    """Step down to lose the least value per saved cost until the budget is met; group ``held`` is not changed."""
    places = list(start)
    while problem.cost(places) > problem.budget:
        best, chosen = float("inf"), -1
        for group, place in enumerate(places):
            if place == 0 or group == held:
                continue
            lost = float(problem.values[group][place] - problem.values[group][place - 1])
            saved = -float(problem.cost_changes(places, group)[place - 1])
            if saved > 0 and lost / saved < best:
                best, chosen = lost / saved, group
        if chosen < 0:
            above = [group for group, place in enumerate(places) if place > 0 and group != held]
            if not above:
                return None
            chosen = above[0]  # no single step saves anything (a flat table), but several steps may
        places[chosen] -= 1
    return places


def _filled(problem: Knapsack, start: Places) -> Places:
    """Step up to gain the most value per cost, as long as a step fits."""
    places = list(start)
    while True:
        room, best, chosen = problem.budget - problem.cost(places), 0.0, (-1, -1)
        for group, place in enumerate(places):
            if place + 1 == len(problem.values[group]):
                continue
            more = problem.cost_changes(places, group)[place + 1 :]
            gained = problem.values[group][place + 1 :] - problem.values[group][place]
            ratio = np.where(more <= room, gained / np.maximum(more, 1e-9 * problem.budget), -1.0)
            step = int(ratio.argmax())
            if float(ratio[step]) > best:
                best, chosen = float(ratio[step]), (group, place + 1 + step)
        if chosen[0] < 0:
            return places
        places[chosen[0]] = chosen[1]


def _exchanged(problem: Knapsack, places: Places) -> Places:
    """Move one group by a few steps and refit the other groups to the budget, as long as the value rises."""
    value = problem.value(places)
    for _ in range(SWEEPS):
        before = value
        for group in range(len(places)):
            for step in [sign * distance for distance in range(1, REACH + 1) for sign in (-1, 1)]:
                place = places[group] + step
                if not 0 <= place < len(problem.values[group]):
                    continue
                lowered = _lowered(problem, [*places[:group], place, *places[group + 1 :]], held=group)
                if lowered is None:
                    continue
                found = _filled(problem, lowered)
                if problem.value(found) > value * (1 + 1e-12):
                    places, value = found, problem.value(found)
        if value == before:
            break
    return places
