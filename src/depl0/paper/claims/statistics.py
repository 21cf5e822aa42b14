"""By how much one kind of runs is better than another, and how sure that is: pure functions of numbers by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from depl0._util.optional import require
from depl0.app.table import MISSING

CONFIDENCE = 0.95
"""of the interval in which the true difference is"""

Curve = Mapping[float, float]
"""a value for each cost, joined by straight lines"""


@final
@dataclass(frozen=True)
class Sample:
    """One figure of the runs of one kind in one setting, over seeds."""

    n: int
    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return number, mean and sample standard deviation."""
        mean = statistics.fmean(values) if values else None
        return cls(len(values), mean, statistics.stdev(values) if len(values) > 1 else None)

    def show(self, digits: int) -> str:
        """Return mean ± deviation (n)."""
        if self.mean is None:
            return MISSING
        spread = "" if self.sd is None else f" ± {self.sd:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} (n = {self.n})"


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference, with the interval in which the true one is with :data:`CONFIDENCE`."""

    mean: float
    error: float | None
    """its standard error; None: too few runs"""
    low: float | None
    high: float | None
    paired: bool


def difference(left: Mapping[int, float], right: Mapping[int, float]) -> Difference | None:
    """Return by how much the mean of ``left`` is above that of ``right``; None: one of them is empty.

    Both are values by seed. With the same seeds on both sides it is the mean over pairs, because runs of one seed see
    the same images in the same order; otherwise the two means are independent (Welch). The interval is Student's, which
    is wide where there are few runs.

    >>> found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 1.0})
    >>> round(found.mean, 3), round(found.error, 3), found.paired
    (1.333, 0.333, True)
    """
    if not left or not right:
        return None
    if left.keys() == right.keys():
        return _of_pairs([left[seed] - right[seed] for seed in left])
    mean = statistics.fmean(left.values()) - statistics.fmean(right.values())
    if min(len(left), len(right)) < 2:
        return Difference(mean, None, None, None, paired=False)
    parts = [(statistics.variance(side.values()) / len(side), len(side)) for side in (left, right)]
    error = math.sqrt(sum(part for part, _ in parts))
    # Where nothing varies, any number of degrees gives the same interval.
    freedom = error**4 / sum(part**2 / (n - 1) for part, n in parts) if error > 0 else 1.0
    return _with_interval(mean, error, freedom, paired=False)


def _of_pairs(differences: Sequence[float]) -> Difference:
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return Difference(mean, None, None, None, paired=True)
    return _with_interval(mean, statistics.stdev(differences) / math.sqrt(n), n - 1, paired=True)


def _with_interval(mean: float, error: float, freedom: float, *, paired: bool) -> Difference:
    reach = error * student(freedom)
    return Difference(mean, error, mean - reach, mean + reach, paired)


def student(freedom: float) -> float:
    """Return the standard errors that an interval of :data:`CONFIDENCE` reaches to each side.

    >>> [round(student(freedom), 2) for freedom in (2, 4, 8)]
    [4.3, 2.78, 2.31]
    """
    stdtrit = require("scipy.special", "scipy", "to judge differences").stdtrit
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


# -- at equal cost ---------------------------------------------------------------------------------------------------


def overlap(left: Curve, right: Curve) -> tuple[float, float] | None:
    """Return the range of costs that both curves cover; None: there is none.

    >>> overlap({0.2: 1.0, 0.5: 2.0}, {0.4: 1.0, 0.9: 2.0}), overlap({0.2: 1.0, 0.3: 2.0}, {0.4: 1.0, 0.9: 2.0})
    ((0.4, 0.5), None)
    """
    low, high = max(min(left), min(right)), min(max(left), max(right))
    return (low, high) if low < high else None


def mean_over(curve: Curve, low: float, high: float) -> float:
    """Return the mean of a curve between two costs that it covers.

    >>> mean_over({0.0: 0.0, 1.0: 10.0, 2.0: 10.0}, 0.5, 2.0)
    9.166666666666666
    """
    costs = [low, *sorted(cost for cost in curve if low < cost < high), high]
    values = [_at(curve, cost) for cost in costs]
    area = sum((b - a) * (f + g) / 2 for (a, b), (f, g) in zip(pairwise(costs), pairwise(values), strict=True))
    return area / (high - low)


def _at(curve: Curve, cost: float) -> float:
    if cost in curve:
        return curve[cost]
    before, after = max(c for c in curve if c < cost), min(c for c in curve if c > cost)
    share = (cost - before) / (after - before)
    return (1 - share) * curve[before] + share * curve[after]
