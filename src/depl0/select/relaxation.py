"""The Lagrangian relaxation of a knapsack: a start that is nearly as good as can be, and a bound on what can be.

For any price λ ≥ 0 of the cost, no choice within the budget B is worth more than

    max over all choices of value − λ·(cost − B).

The maximum is exact, found by eliminating one group after the other: groups meet in few others (a chain of layers, or a
residual stream with what hangs on it), so the tables stay small. Where they would not, there is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from depl0.costs.terms import Array, PairwiseCost
from depl0.select.knapsack import Knapsack, PairwiseCosts, Places

LARGEST = 4_000_000
"""entries of a table"""
PRICES = 40
"""prices that are tried"""


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
        if entries[group] > LARGEST:
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
