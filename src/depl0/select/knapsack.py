"""One choice for every group, worth the most within a budget: a knapsack whose weights depend on each other.

Every group offers some choices, each with a value; the sum of the values is to be large. What a choice costs depends on
what the groups beside it have chosen (a layer's MACs are its inputs times its outputs), so this is a quadratic
multiple-choice knapsack. Small ones are solved exactly, all choices at once: ResNet-20 in multiples of 8 has half a
million. Larger ones in two steps: a Lagrangian relaxation, which also bounds the best value from above, and then a
search by exchange: one group moves, the others make room or take what has become free. In the end nothing more fits.

For any price λ ≥ 0 of the cost, no choice within the budget B is worth more than

    max over all choices of value − λ·(cost − B).

The maximum is exact, found by eliminating one group after the other: groups meet in few others (a chain of layers, or a
residual stream with what hangs on it), so the tables stay small. Where they would not, there is no bound.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from depl0.costs.terms import Array, PairwiseCost

MOST_CHOICES = 2_000_000
"""choices that are tried one by one"""
LARGEST_TABLE = 4_000_000
"""entries of a table of the relaxation"""
PRICES = 40
"""prices that the relaxation tries"""

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


def solve(problem: Knapsack, start: Places) -> tuple[Places | None, float | None]:
    """Return the best choices, or nearly the best where there are too many to try, and a bound on their value."""
    if isinstance(problem.costs, PairwiseCosts) and prod(problem.costs.sizes) <= MOST_CHOICES:
        places = best_of_all(problem)
        return places, None if places is None else problem.value(places)
    relaxed = relax(problem)
    return improve(problem, [start, *(relaxed.places if relaxed else ())]), relaxed.bound if relaxed else None


# -- all choices -----------------------------------------------------------------------------------------------------


def best_of_all(problem: Knapsack) -> Places | None:
    """Return the choices that are worth the most within the budget; None if nothing keeps it."""
    assert isinstance(problem.costs, PairwiseCosts)
    tables, sizes = problem.costs.tables, problem.costs.sizes
    groups = [group for group, size in enumerate(sizes) if size > 1]  # arrays have a limited number of dimensions
    cost, value = np.full([sizes[g] for g in groups], tables.constant), np.zeros([sizes[g] for g in groups])

    def along(table: Array, *of: int) -> Array:
        """Return a table of groups, in rising order, as one that is added to all choices."""
        return table.reshape([sizes[g] if g in of else 1 for g in groups])

    for group, own in enumerate(tables.single):
        cost += along(own, group)
        value += along(problem.values[group], group)
        for other, table in tables.pairs[group].items():
            if other > group:
                cost += along(table, group, other)
    value[cost > problem.budget] = -np.inf
    best = int(value.argmax())
    if value.flat[best] == -np.inf:
        return None
    places = [0] * len(sizes)
    for group, place in zip(groups, np.unravel_index(best, value.shape), strict=True):
        places[group] = int(place)
    return places


# -- search by exchange ----------------------------------------------------------------------------------------------


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


# -- relaxation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relaxed:
    """What the relaxation found."""

    bound: float
    """no choice within the budget is worth more"""
    places: tuple[Places, ...]
    """choices that are the best at some price, on either side of the budget"""


def relax(problem: Knapsack) -> Relaxed | None:
    """Return bound and choices at the best price; None where groups are too entangled."""
    if not isinstance(problem.costs, PairwiseCosts):
        return None
    tables = problem.costs.tables
    order = _order(tables, problem.costs.sizes)
    if order is None:
        return None
    low, high = 0.0, _dear(problem)
    bound, found = float("inf"), []
    for _ in range(PRICES):
        price = (low + high) / 2
        value, places = _best_at(problem, tables, order, price)
        bound = min(bound, value)
        found.append(places)
        if problem.fits(places):
            high = price
        else:
            low = price
        if high - low <= 1e-9 * high:
            break
    largest = sum(float(values[-1]) for values in problem.values)
    return Relaxed(min(bound, largest), (*_distinct(found[-4:]),))


def _dear(problem: Knapsack) -> float:
    """Return a price at which everything is too dear: twice the most that any step is worth for its cost."""
    dearest = 1e-30
    lowest = [0] * len(problem.values)
    for group, values in enumerate(problem.values):
        costs = problem.costs.moved(lowest, group)
        steps = np.maximum(np.diff(costs), 1e-12 * problem.budget)
        if len(values) > 1:
            dearest = max(dearest, float((np.diff(values) / steps).max()))
    return 2 * dearest


def _distinct(found: list[Places]) -> list[Places]:
    return [places for number, places in enumerate(found) if places not in found[:number]]


def _order(tables: PairwiseCost, sizes: list[int]) -> list[int] | None:
    """Return the groups in the order in which they are eliminated, smallest table first; None if one is too large."""
    beside = {group: set(meets) for group, meets in enumerate(tables.pairs)}
    order = []
    while beside:
        entries = {group: sizes[group] * prod(sizes[h] for h in near) for group, near in beside.items()}
        group = min(entries, key=lambda g: (entries[g], g))
        if entries[group] > LARGEST_TABLE:
            return None
        near = beside.pop(group)
        for other in near:
            beside[other] = (beside[other] | near) - {group, other}
        order.append(group)
    return order


def _best_at(problem: Knapsack, tables: PairwiseCost, order: list[int], price: float) -> tuple[float, Places]:
    """Return the maximum of value − price·(cost − budget), and where it is."""
    sizes = problem.costs.sizes
    factors: list[tuple[tuple[int, ...], Array]] = []
    for group, values in enumerate(problem.values):
        factors.append(((group,), values - price * tables.single[group]))
        factors += [((group, h), -price * table) for h, table in tables.pairs[group].items() if h > group]
    constant = price * (problem.budget - tables.constant)
    chosen: list[tuple[int, tuple[int, ...], NDArray[np.intp]]] = []
    for group in order:
        own = [factor for factor in factors if group in factor[0]]
        factors = [factor for factor in factors if group not in factor[0]]
        scope = tuple(sorted({g for groups, _ in own for g in groups} - {group}))
        axes = (*scope, group)
        joined = np.zeros([sizes[g] for g in axes])
        for groups, table in own:
            joined = joined + _aligned(groups, table, axes)
        chosen.append((group, scope, joined.argmax(axis=-1)))
        factors.append((scope, joined.max(axis=-1)))
    places = [0] * len(sizes)
    for group, scope, indices in reversed(chosen):
        places[group] = int(indices[tuple(places[g] for g in scope)])
    return constant + sum(float(table) for _, table in factors), places


def _aligned(groups: tuple[int, ...], table: Array, axes: tuple[int, ...]) -> Array:
    """Return a table with its dimensions where ``axes`` has them, and size 1 for those that it lacks."""
    by_place = sorted(range(len(groups)), key=lambda i: axes.index(groups[i]))
    table = table.transpose(by_place)
    shape = [1] * len(axes)
    for i, size in zip(by_place, table.shape, strict=True):
        shape[axes.index(groups[i])] = size
    return table.reshape(shape)
