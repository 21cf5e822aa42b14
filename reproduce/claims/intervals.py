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
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        return self.show(2)

    def show(self, digits: int) -> str:
        """Return the mean and its interval."""
        interval = "" if self.low is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.mean:+.{digits}f}{interval}".replace("-", "−")


def of_pairs(differences: Sequence[float]) -> Difference:
    """Return the mean of paired differences; runs of one seed see the same images in the same order.

    >>> print(of_pairs([1.0, 1.0, 2.0]))
    +1.33 (−0.10 to +2.77)
    """
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return Difference(mean, None, None, n)
    reach = statistics.stdev(differences) / math.sqrt(n) * student(n - 1)
    return Difference(mean, mean - reach, mean + reach, n)


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
    return min(curve) <= cost <= max(curve) and min(abs(cost - run) for run in curve) <= NEAR + 1e-9


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
