"""The numbers of a member that tables show, and what they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from depl0.app.runs import schema as content
from depl0.app.studies.study import Outcome
from depl0.app.tasks import Metric, metric_in

MADE_WITH = ("commit", "depl0", "torch")
"""what a figure's provenance is told by"""


def measure_names(metric: Metric) -> tuple[str, ...]:
    """Return what the numbers of a run are called: the metric of both networks, their difference, costs and time."""
    scores = (metric.name, f"dense_{metric.name}", "change", f"validation_{metric.name}")
    return (*scores, "cost_left", "macs_left", "params_left", "seconds")


def measures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a finished run; ``change`` is compact less dense, whichever way is better."""
    name = metric_in(summary).name
    compact, dense = summary["compact"][name], summary["dense"][name]
    return {
        name: compact,
        f"dense_{name}": dense,
        "change": None if dense is None else compact - dense,
        f"validation_{name}": _validation(summary, name),
        "cost_left": summary["budget_reached"],  # of the cost that the budget counts
        "macs_left": summary["macs_left"],
        "params_left": summary["params_left"],
        "seconds": summary["seconds"],
    }


def _validation(summary: dict[str, Any], name: str) -> float | None:
    """Return the compact network's metric on the images that were held out for choices, if any were."""
    held_out = summary.get("validation")
    found: float | None = None if held_out is None else held_out["compact"][name]
    return found


def are_held_out(members: Iterable[dict[str, Any]], metric: Metric) -> bool:
    """Tell whether members held images out for choices, so that tables show the metric on these too."""
    return any(member[f"validation_{metric.name}"] is not None for member in members)


def describe(outcome: Outcome, metric: Metric) -> dict[str, Any]:
    """Return a member as the study's JSON file has it: status, numbers (None where there are none), error."""
    numbers = dict.fromkeys(measure_names(metric)) if outcome.summary is None else measures(outcome.summary)
    error = None if outcome.failure is None else outcome.failure.message
    return {"name": outcome.name, "status": outcome.status, **numbers, "error": error}


def status(row: dict[str, Any]) -> str:
    """Return the cell that says what has become of a member."""
    return str(row["status"]) if row["error"] is None else f"{row['status']}: {row['error']}"


def unfinished_note(members: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the line below a table that says which members its means are without."""
    missing = [f"{member['name']}: {status(member)}" for member in members if member["status"] != "finished"]
    return (f"Not in the table: {'; '.join(missing)}",) if missing else ()


def made_with(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the commits and versions that finished runs were made with; more than one if they differ."""
    return of_all(versions_of(folder) for folder in folders if (folder / "summary.json").exists())


def of_all(versions: Iterable[Mapping[str, str | None]]) -> dict[str, list[str]]:
    """Return the different commits and versions among those of several runs."""
    told = list(versions)
    return {name: sorted({found for each in told if (found := each.get(name))}) for name in MADE_WITH}


def versions_of(folder: Path) -> dict[str, str | None]:
    """Return commit and versions of a run; a damaged file is said, and costs no study its table."""
    try:
        environment = json.loads((folder / "environment.json").read_bytes())
        content.ENVIRONMENT(environment, "")
    except FileNotFoundError:
        return dict.fromkeys(MADE_WITH)
    except (OSError, ValueError, RecursionError, content.Wrong):
        return dict.fromkeys(MADE_WITH, "unknown")
    told = {"commit": environment.get("commit"), **(environment.get("packages") or {})}
    return {name: told.get(name) for name in MADE_WITH}


def made_with_note(made: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the line below a table that says what it was made with."""
    parts = [f"{name} {' and '.join(value[:12] for value in values)}" for name, values in made.items() if values]
    return (f"Made with {', '.join(parts)}.",) if parts else ()
