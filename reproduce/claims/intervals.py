"""Differences between methods at equal cost with confidence intervals, from results by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
NEAR, STEP = 0.075, 0.005
"""largest distance of a run from a compared cost; step between the costs over which means are taken"""
LEAST_RANGE = 0.05
"""smallest common range of costs for a seed"""

Curve = Mapping[float, float]
"""a figure for each cost, joined by straight lines"""


@dataclass(frozen=True)
class Difference:
    """A mean difference with its confidence interval, which needs two seeds."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    paired: bool
    n: int

    def __str__(self) -> str:
        return self.show(2)

    def show(self, digits: int) -> str:
        """Return the mean and its interval."""
        interval = "" if self.low is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.mean:+.{digits}f}{interval}".replace("-", "−")


def difference(left: Mapping[int, float], right: Mapping[int, float]) -> Difference | None:
    """Return the mean of ``left`` minus that of ``right``, both by seed; None if one is empty.

    With the same seeds it is the mean over pairs, because runs of one seed see the same images in the same order.
    Otherwise the two means are independent (Welch). The interval is Student's, which is wide for few runs.

    >>> found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 1.0})
    >>> round(found.mean, 3), round(found.error, 3), found.paired
    (1.333, 0.333, True)
    """
    if not left or not right:
        return None
    if left.keys() == right.keys():
        return of_pairs([left[seed] - right[seed] for seed in left])
    mean, n = statistics.fmean(left.values()) - statistics.fmean(right.values()), min(len(left), len(right))
    if n < 2:
        return Difference(mean, None, None, None, False, n)
    parts = [(statistics.variance(side.values()) / len(side), len(side)) for side in (left, right)]
    error = math.sqrt(sum(part for part, _ in parts))
    freedom = error**4 / sum(part**2 / (n - 1) for part, n in parts) if error > 0 else 1.0
    return _with_interval(mean, error, freedom, False, n)


def of_pairs(differences: Sequence[float]) -> Difference:
    """Return the mean of paired differences."""
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return Difference(mean, None, None, None, True, n)
    return _with_interval(mean, statistics.stdev(differences) / math.sqrt(n), n - 1, True, n)


def _with_interval(mean: float, error: float, freedom: float, paired: bool, n: int) -> Difference:
    reach = error * student(freedom)
    return Difference(mean, error, mean - reach, mean + reach, paired, n)


def student(freedom: float) -> float:
    """Return the standard errors that an interval of :data:`CONFIDENCE` reaches to each side.

    >>> [round(student(freedom), 2) for freedom in (2, 4, 8)]
    [4.3, 2.78, 2.31]
    """
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def is_near(curve: Curve, cost: float) -> bool:
    """Return True if a curve can be read at a cost: between two of its runs, the nearest of which is close.

    >>> is_near({0.2: 1.0, 0.4: 2.0}, 0.25), is_near({0.2: 1.0, 0.4: 2.0}, 0.3), is_near({0.2: 1.0, 0.4: 2.0}, 0.41)
    (True, False, False)
    """
    return min(curve) <= cost <= max(curve) and min(abs(cost - run) for run in curve) <= NEAR


def common_costs(left: Curve, right: Curve) -> list[float]:
    """Return the costs at which both curves can be read, in steps of :data:`STEP`; none if their range is too small.

    >>> len(common_costs({0.2: 1.0, 0.3: 2.0}, {0.2: 1.0, 0.9: 2.0}))
    16
    >>> common_costs({0.0: 1.0, 1.0: 2.0}, {0.3: 1.0, 0.6: 2.0})
    []
    """
    steps = range(math.ceil(round(min(left) / STEP, 6)), math.floor(round(max(left) / STEP, 6)) + 1)
    costs = [cost for cost in (round(step * STEP, 6) for step in steps) if is_near(left, cost) and is_near(right, cost)]
    return costs if len(costs) * STEP >= LEAST_RANGE else []


def mean_at(curve: Curve, costs: Sequence[float]) -> float:
    """Return the mean of a curve at costs, by straight lines between its runs.

    >>> mean_at({0.0: 0.0, 1.0: 10.0, 2.0: 10.0}, [0.5, 1.0, 1.5])
    8.333333333333334
    """
    points = sorted(curve)
    return float(np.interp(costs, points, [curve[point] for point in points]).mean())
