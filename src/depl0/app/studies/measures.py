"""Numbers of a study's members, their statistics over seeds, and notes below its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from depl0._util.io import read_json
from depl0.app.runs import schema as content
from depl0.app.studies.study import Outcome
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError

MADE_WITH = ("commit", "depl0", "torch")
"""entries that identify the origin of a figure"""
AGREEMENTS = {"equal_answers": "equal answers", "output_error": "output error"}
"""measures of agreement with the dense network and their titles; the first available one is shown"""


def measure_names(metric: Metric) -> tuple[str, ...]:
    """Return the names of a run's numbers: the metric of both networks, their difference, costs and time."""
    scores = (metric.name, f"dense_{metric.name}", "change", f"validation_{metric.name}")
    return (*scores, *AGREEMENTS, "cost_left", "macs_left", "params_left", "latency_ms", "dense_latency_ms", "seconds")


def measures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a finished run; ``change`` is compact minus dense, whether or not higher is better."""
    name, agreement = metric_in(summary).name, summary.get("agreement") or {}
    compact, dense = summary["compact"][name], summary["dense"][name]
    return {
        name: compact,
        f"dense_{name}": dense,
        "change": None if dense is None else compact - dense,
        f"validation_{name}": summary["validation"]["compact"][name] if summary.get("validation") else None,
        "equal_answers": agreement.get("equal"),
        "output_error": agreement.get("error"),
        "cost_left": summary["budget_reached"],  # fraction of the cost that the budget limits
        "macs_left": summary["macs_left"],
        "params_left": summary["params_left"],
        "latency_ms": summary["compact"].get("latency_ms"),
        "dense_latency_ms": summary["dense"].get("latency_ms"),
        "seconds": summary["seconds"],
    }


def describe(outcome: Outcome, metric: Metric) -> dict[str, Any]:
    """Return a member's entry in the study's JSON file: status, numbers (None if missing), and error."""
    numbers = dict.fromkeys(measure_names(metric)) if outcome.summary is None else measures(outcome.summary)
    error = None if outcome.failure is None else outcome.failure.message
    return {"name": outcome.name, "status": outcome.status, **numbers, "error": error}


def shown_agreement(members: Iterable[dict[str, Any]]) -> str | None:
    """Return the entry of :data:`AGREEMENTS` to show, or None if members were not compared with the dense network."""
    members = list(members)
    return next((name for name in AGREEMENTS if any(member.get(name) is not None for member in members)), None)


def seeds_from(first: int, number: int) -> tuple[int, ...]:
    """Return the seeds of a study with this number of ``--seeds``.

    >>> seeds_from(5, 3)
    (5, 6, 7)
    """
    if number < 1:
        raise InputError(f"--seeds must be at least 1, got {number} instead.", hint="3 seeds give a spread.")
    return tuple(first + step for step in range(number))


def over_seeds(members: Sequence[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """Return number, mean and sample standard deviation of finished members. Fewer than two have no deviation."""
    finished = [member for member in members if member["status"] == "finished"]
    row: dict[str, Any] = {"n": len(finished), "asked": len(members)}
    for name in measure_names(metric):
        row[name] = mean_and_deviation([member[name] for member in finished if member[name] is not None])
    return row


def mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of some values, None if there are too few."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


# -- notes -------------------------------------------------------------------------------------------------------------


def unfinished_note(members: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the line below a table that lists the members missing from its means."""
    missing = [
        f"{member['name']}: {member['status']}" + ("" if member["error"] is None else f": {member['error']}")
        for member in members
        if member["status"] != "finished"
    ]
    return (f"Not in the table: {'; '.join(missing)}",) if missing else ()


def made_with(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the commits and versions that finished runs were made with; more than one if they differ."""
    versions = [_versions(folder) for folder in folders if (folder / "summary.json").exists()]
    return {name: sorted({found for each in versions if (found := each.get(name))}) for name in MADE_WITH}


def _versions(folder: Path) -> dict[str, str | None]:
    """Return commit and versions of a run. A damaged file is reported, but does not prevent the table."""
    try:
        environment = read_json(folder / "environment.json")
        content.validate(content.ENVIRONMENT, environment)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return dict.fromkeys(MADE_WITH, "unknown")
    return {"commit": environment.get("commit"), **(environment.get("packages") or {})}


def made_with_note(made: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the line below a table that lists commits and versions."""
    parts = [f"{name} {' and '.join(value[:12] for value in values)}" for name, values in made.items() if values]
    return (f"Made with {', '.join(parts)}.",) if parts else ()
