"""One choice for every group, worth the most within a budget: a knapsack whose weights depend on each other.

Every group offers some choices, each with a value; the sum of the values is to be large. What a choice costs depends on
what the groups beside it have chosen (a layer's MACs are its inputs times its outputs), so this is a quadratic
multiple-choice knapsack. It is solved in two steps: a Lagrangian relaxation (:mod:`depl0.select.relaxation`), which
also bounds the best value from above, and from there a search by exchange: one group moves, the others make room or
take what has become free. In the end nothing more fits.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from depl0.costs.terms import Array, PairwiseCost

Places = list[int]
"""for every group the number of its choice"""

REACH = 2
"""places up and down that an exchange tries"""
SWEEPS = 6
"""over all groups, in one search by exchange"""


class Costs(abc.ABC):
    """What choices cost. Choices of a group are in rising order of cost."""

    sizes: list[int]
    """how many choices every group has"""

    @abc.abstractmethod
    def at(self, places: Places) -> float:
        """Return the cost of these choices."""

    @abc.abstractmethod
    def moved(self, places: Places, group: int) -> Array:
        """Return what each choice of one group would change, the others as they are; infinite where not known."""


class PairwiseCosts(Costs):
    """Parameters or MACs: tables of pairs."""

    def __init__(self, tables: PairwiseCost) -> None:
        self.tables = tables
        self.sizes = [len(own) for own in tables.single]

    def at(self, places: Places) -> float:
        """Return the cost of these choices."""
        tables = self.tables
        total = tables.constant
        for group, place in enumerate(places):
            total += float(tables.single[group][place])
            total += sum(float(t[place, places[h]]) for h, t in tables.pairs[group].items() if h > group)
        return total

    def moved(self, places: Places, group: int) -> Array:
        """Return what each choice of one group would change, the others as they are."""
        own = self.tables.single[group].copy()
        for other, table in self.tables.pairs[group].items():
            own += table[:, places[other]]
        changes: Array = own - own[places[group]]
        return changes


class CalledCosts(Costs):
    """Any cost that can be asked for; only the next choices up and down are looked at."""

    def __init__(self, sizes: Sequence[int], cost: Callable[[Places], float]) -> None:
        self.sizes, self._cost = list(sizes), cost
        self._known: dict[tuple[int, ...], float] = {}

    def at(self, places: Places) -> float:
        """Return the cost of these choices."""
        key = tuple(places)
        if key not in self._known:
            self._known[key] = self._cost(places)
        return self._known[key]

    def moved(self, places: Places, group: int) -> Array:
        """Return what the next choices would change, infinite for all others."""
        changes = np.full(self.sizes[group], np.inf)
        here, now = places[group], self.at(places)
        for place in range(max(0, here - 1), min(self.sizes[group], here + 2)):
            changes[place] = self.at([*places[:group], place, *places[group + 1 :]]) - now
        return changes


@dataclass(frozen=True)
class Knapsack:
    """The problem: values of every group's choices, rising, what they cost together, and the budget."""

    values: tuple[Array, ...]
    costs: Costs
    budget: float

    def value(self, places: Places) -> float:
        """Return what these choices are worth."""
        return sum(float(values[place]) for values, place in zip(self.values, places, strict=True))

    def fits(self, places: Places) -> bool:
        """Tell whether the budget is kept."""
        return self.costs.at(places) <= self.budget


def improve(problem: Knapsack, starts: Iterable[Places]) -> Places | None:
    """Return the best choices that exchanges find from these starts; None if nothing keeps the budget."""
    best: Places | None = None
    for start in starts:
        found = _filled(problem, _lowered(problem, list(start)))
        if found is None:
            continue
        found = _exchanged(problem, found)
        if best is None or problem.value(found) > problem.value(best) * (1 + 1e-12):
            best = found
    return best


def _lowered(problem: Knapsack, places: Places, held: int = -1) -> Places | None:
    """Step down where the least value is lost for the cost saved, until the budget is kept; ``held`` stays."""
    costs, places = problem.costs, list(places)
    while costs.at(places) > problem.budget:
        best, chosen = float("inf"), -1
        for group, place in enumerate(places):
            if place == 0 or group == held:
                continue
            lost = float(problem.values[group][place] - problem.values[group][place - 1])
            saved = -float(costs.moved(places, group)[place - 1])
            if saved > 0 and lost / saved < best:
                best, chosen = lost / saved, group
        if chosen < 0:
            below = [group for group, place in enumerate(places) if place > 0 and group != held]
            if not below:
                return None
            chosen = below[0]  # nothing is saved by one step (a flat table): all steps are taken in the end
        places[chosen] -= 1
    return places


def _filled(problem: Knapsack, places: Places | None) -> Places | None:
    """Step up where the most value is won for the cost, as long as anything fits."""
    if places is None:
        return None
    costs, places = problem.costs, list(places)
    while True:
        room, best, chosen = problem.budget - costs.at(places), 0.0, (-1, -1)
        for group, place in enumerate(places):
            if place + 1 == costs.sizes[group]:
                continue
            more = costs.moved(places, group)[place + 1 :]
            won = problem.values[group][place + 1 :] - problem.values[group][place]
            ratio = np.where(more <= room, won / np.maximum(more, 1e-9 * problem.budget), -1.0)
            step = int(ratio.argmax())
            if float(ratio[step]) > best:
                best, chosen = float(ratio[step]), (group, place + 1 + step)
        if chosen[0] < 0:
            return places
        places[chosen[0]] = chosen[1]


def _exchanged(problem: Knapsack, places: Places) -> Places:
    """Move one group some places and let the others make room or take it, as long as that is better."""
    reach = REACH if isinstance(problem.costs, PairwiseCosts) else 1
    worth = problem.value(places)
    for _ in range(SWEEPS):
        before = worth
        for group in range(len(places)):
            for step in [s for distance in range(1, reach + 1) for s in (-distance, distance)]:
                place = places[group] + step
                if not 0 <= place < problem.costs.sizes[group]:
                    continue
                moved = [*places[:group], place, *places[group + 1 :]]
                found = _filled(problem, _lowered(problem, moved, held=group))
                if found is not None and problem.value(found) > worth * (1 + 1e-12):
                    places, worth = found, problem.value(found)
        if worth == before:
            break
    return places
