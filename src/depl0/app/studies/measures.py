"""Cells and notes of a study's table: numbers of members and their statistics over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from depl0._util.io import read_json
from depl0.app.runs import schema as content
from depl0.app.studies.study import Outcome
from depl0.app.table import MISSING
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
    name = metric_in(summary).name
    compact, dense, agreement = summary["compact"][name], summary["dense"][name], summary.get("agreement") or {}
    return {
        name: compact,
        f"dense_{name}": dense,
        "change": None if dense is None else compact - dense,
        f"validation_{name}": _validation(summary, name),
        "equal_answers": agreement.get("equal"),
        "output_error": agreement.get("error"),
        "cost_left": summary["budget_reached"],  # fraction of the cost that the budget limits
        "macs_left": summary["macs_left"],
        "params_left": summary["params_left"],
        "latency_ms": summary["compact"].get("latency_ms"),
        "dense_latency_ms": summary["dense"].get("latency_ms"),
        "seconds": summary["seconds"],
    }


def _validation(summary: dict[str, Any], name: str) -> float | None:
    """Return the compact network's metric on the images held out for choices, if any."""
    held_out = summary.get("validation")
    found: float | None = None if held_out is None else held_out["compact"][name]
    return found


def are_held_out(members: Iterable[dict[str, Any]], metric: Metric) -> bool:
    """Return True if members held out images for choices, so that tables also show the metric on these."""
    return any(member[f"validation_{metric.name}"] is not None for member in members)


def shown_agreement(members: Iterable[dict[str, Any]]) -> str | None:
    """Return the entry of :data:`AGREEMENTS` to show, or None if members were not compared with the dense network."""
    members = list(members)
    return next((name for name in AGREEMENTS if any(member.get(name) is not None for member in members)), None)


def describe(outcome: Outcome, metric: Metric) -> dict[str, Any]:
    """Return a member's entry in the study's JSON file: status, numbers (None if missing), and error."""
    numbers = dict.fromkeys(measure_names(metric)) if outcome.summary is None else measures(outcome.summary)
    error = None if outcome.failure is None else outcome.failure.message
    return {"name": outcome.name, "status": outcome.status, **numbers, "error": error}


def status(row: dict[str, Any]) -> str:
    """Return the cell with the status of a member."""
    return str(row["status"]) if row["error"] is None else f"{row['status']}: {row['error']}"


def unfinished_note(members: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the line below a table that lists the members missing from its means."""
    missing = [f"{member['name']}: {status(member)}" for member in members if member["status"] != "finished"]
    return (f"Not in the table: {'; '.join(missing)}",) if missing else ()


def made_with(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the commits and versions that finished runs were made with; more than one if they differ."""
    return of_all(versions_of(folder) for folder in folders if (folder / "summary.json").exists())


def of_all(versions: Iterable[Mapping[str, str | None]]) -> dict[str, list[str]]:
    """Return the distinct commits and versions of several runs."""
    told = list(versions)
    return {name: sorted({found for each in told if (found := each.get(name))}) for name in MADE_WITH}


def versions_of(folder: Path) -> dict[str, str | None]:
    """Return commit and versions of a run. A damaged file is reported, but does not prevent the table."""
    try:
        environment = read_json(folder / "environment.json")
        content.validate(content.ENVIRONMENT, environment)
    except FileNotFoundError:
        return dict.fromkeys(MADE_WITH)
    except (OSError, ValueError, RecursionError):
        return dict.fromkeys(MADE_WITH, "unknown")
    told = {"commit": environment.get("commit"), **(environment.get("packages") or {})}
    return {name: told.get(name) for name in MADE_WITH}


def made_with_note(made: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the line below a table that lists commits and versions."""
    parts = [f"{name} {' and '.join(value[:12] for value in values)}" for name, values in made.items() if values]
    return (f"Made with {', '.join(parts)}.",) if parts else ()


# -- over seeds ---------------------------------------------------------------------------------------------


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
        values = [member[name] for member in finished if member[name] is not None]
        row[name] = {
            "mean": statistics.fmean(values) if values else None,
            "sd": statistics.stdev(values) if len(values) > 1 else None,
        }
    return row


def number_of(row: dict[str, Any]) -> str:
    """Return the cell with the number of seeds of a mean."""
    return str(row["n"]) if row["n"] == row["asked"] else f"{row['n']} of {row['asked']}"


def cells_of(row: dict[str, Any], metric: Metric) -> dict[str, tuple[float | None, float | None]]:
    """Return mean and deviation of every number, from which the cells of tables are made."""
    return {name: (row[name]["mean"], row[name]["sd"]) for name in measure_names(metric)}


# -- cells ---------------------------------------------------------------------------------------------


def value(metric: Metric, mean: float | None, spread: float | None = None) -> str:
    """Format a metric's value, and its spread over seeds.

    >>> value(Metric("accuracy", "%"), 91.5, 0.25), value(Metric("rmse"), 0.0123)
    ('91.50 ± 0.25 %', '0.0123')
    """
    if mean is None:
        return MISSING
    spreads = "" if spread is None else f" ± {metric.number(spread)}"
    return metric.number(mean) + spreads + (f" {metric.unit}" if metric.unit else "")


def score_titles(metric: Metric, held_out: bool) -> tuple[str, ...]:
    """Return the columns of a metric: if images were held out for choices, on these and on the test images."""
    return (f"validation {metric.label}", f"test {metric.label}") if held_out else (metric.label,)


def change(metric: Metric, mean: float | None, spread: float | None = None) -> str:
    """Format the difference of two values of a metric.

    >>> change(Metric("accuracy", "%"), -0.5), change(Metric("rmse"), 0.0123, 0.001)
    ('-0.50', '+0.0123 ± 0.001')
    """
    if mean is None:
        return MISSING
    return metric.number(mean, sign=True) + ("" if spread is None else f" ± {metric.number(spread)}")


def direction_note(metric: Metric) -> tuple[str, ...]:
    """Return the line below a table whose metric is better if it is lower."""
    return () if metric.higher_is_better else (f"{metric.title}: {metric.direction}.",)


def share(value: float | None, spread: float | None = None) -> str:
    """Format a fraction of a cost.

    >>> share(0.25)
    '25.0%'
    """
    return MISSING if value is None else f"{_spread(100 * value, None if spread is None else 100 * spread, '.1f')}%"


def seconds(value: float | None, spread: float | None = None) -> str:
    """Format a duration.

    >>> seconds(61.4, 2.0)
    '61 ± 2 s'
    """
    return MISSING if value is None else f"{_spread(value, spread, ',.0f')} s"


def milliseconds(value: float | None, spread: float | None = None) -> str:
    """Format the latency of a network.

    >>> milliseconds(1.234)
    '1.23 ms'
    """
    return MISSING if value is None else f"{_spread(value, spread, '.2f')} ms"


def _spread(value: float, spread: float | None, form: str) -> str:
    shown = format(value, form)
    return shown if spread is None else f"{shown} ± {format(spread, form.lstrip('+'))}"
