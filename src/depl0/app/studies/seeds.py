"""The same training with several seeds: which ones, and what they give together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from depl0.app.studies.measures import measure_names
from depl0.app.tasks import Metric
from depl0.errors import InputError


def seeds_from(first: int, number: int) -> tuple[int, ...]:
    """Return the seeds of a study that has ``--seeds`` so many.

    >>> seeds_from(5, 3)
    (5, 6, 7)
    """
    if number < 1:
        raise InputError(f"--seeds must be at least 1, got {number} instead.", hint="3 seeds give a spread.")
    return tuple(first + step for step in range(number))


def over_seeds(members: Sequence[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """Return number, mean and sample standard deviation of what is finished; no deviation of fewer than two."""
    finished = [member for member in members if member["status"] == "finished"]
    row: dict[str, Any] = {"n": len(finished), "asked": len(members)}
    for name in measure_names(metric):
        values = [member[name] for member in finished if member[name] is not None]
        row[name] = {
            "mean": statistics.fmean(values) if values else None,
            "sd": statistics.stdev(values) if len(values) > 1 else None,
        }
    return row


def number_of(row: dict[str, Any]) -> str:
    """Return the cell that says how many seeds a mean is of."""
    return str(row["n"]) if row["n"] == row["asked"] else f"{row['n']} of {row['asked']}"


def cells_of(row: dict[str, Any], metric: Metric) -> dict[str, tuple[float | None, float | None]]:
    """Return mean and deviation of every number, as the cells of tables are made of."""
    return {name: (row[name]["mean"], row[name]["sd"]) for name in measure_names(metric)}
