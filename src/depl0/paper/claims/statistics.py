"""By how much one kind of runs is better than another, and how sure that is: pure functions of numbers by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

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


NEAR, STEP = 0.075, 0.005
"""how far the nearest run may be from a cost that is compared; distance of these costs"""


def common_costs(left: Curve, right: Curve) -> list[float]:
    """Return the costs that both curves cover with a run within :data:`NEAR`, in steps of :data:`STEP`.

    >>> common_costs({0.2: 1.0, 0.21: 2.0}, {0.2: 1.0, 0.9: 2.0})
    [0.2, 0.205, 0.21]
    >>> common_costs({0.01: 1.0, 1.0: 2.0}, {0.3: 1.0, 0.6: 2.0})
    []
    """
    low, high = max(min(left), min(right)), min(max(left), max(right))
    steps = range(math.ceil(round(low / STEP, 6)), math.floor(round(high / STEP, 6)) + 1)
    return [
        cost
        for cost in (round(step * STEP, 6) for step in steps)
        if all(min(abs(cost - near) for near in curve) <= NEAR for curve in (left, right))
    ]


def mean_at(curve: Curve, costs: Sequence[float]) -> float:
    """Return the mean of a curve at costs that it covers, by straight lines.

    >>> mean_at({0.0: 0.0, 1.0: 10.0, 2.0: 10.0}, [0.5, 1.0, 1.5])
    8.333333333333334
    """
    points = sorted(curve)
    return float(np.interp(costs, points, [curve[point] for point in points]).mean())
