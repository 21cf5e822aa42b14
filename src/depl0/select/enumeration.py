"""Small knapsacks are solved exactly: all choices at once.

A network of a few groups with a few multiples each has some thousand choices, and ResNet-20 in multiples of 8 half a
million; their values and costs fit into one table. Larger networks are left to the relaxation and to exchanges.
"""

from __future__ import annotations

from math import prod

import numpy as np

from depl0.costs.terms import Array
from depl0.select.knapsack import Knapsack, PairwiseCosts, Places

LARGEST = 2_000_000
"""choices that are tried"""


def can_try_all(problem: Knapsack) -> bool:
    """Tell whether there are few enough choices, with costs that are known in advance."""
    return isinstance(problem.costs, PairwiseCosts) and prod(problem.costs.sizes) <= LARGEST


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
