"""The tables of a study: numbers of its members, statistics over seeds, and differences between methods."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from depl0._util.io import read_json
from depl0.app.reports.run import dig
from depl0.app.studies.study import Outcome, Result
from depl0.app.table import MISSING, Table, text_table
from depl0.app.tasks import Metric, metric_in
from depl0.gates.threshold import COSTS

_T_QUANTILES = "12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131"
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; the last is used for more"""
MADE_WITH = ("commit", "depl0", "torch")
"""entries that identify the origin of a figure"""


def measures(summary: dict[str, Any] | None, metric: Metric) -> dict[str, Any]:
    """Return the numbers of a run, None for those that are missing; ``change`` is compact minus dense."""
    found, name = summary or {}, metric.name
    compact, dense = (found.get(part) or {} for part in ("compact", "dense"))
    before, after = dense.get(name), compact.get(name)
    return {
        name: after,
        f"dense_{name}": before,
        "change": None if before is None or after is None else after - before,
        f"validation_{name}": dig(found, "validation", "compact", name),
        "cost_left": found.get("budget_reached"),
        **{key: found.get(key) for key in ("macs_left", "params_left", "seconds")},
        "latency_ms": compact.get("latency_ms"),
    }


def describe(outcome: Outcome, metric: Metric) -> dict[str, Any]:
    """Return a member's entry in the study's JSON file: status, numbers (None if missing), and error."""
    numbers = measures(outcome.summary, metric)
    return {"name": outcome.name, "status": outcome.status, **numbers, "error": outcome.failure}


def over_seeds(members: Sequence[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """Return number, mean and sample standard deviation of finished members. Fewer than two have no deviation."""
    finished = [member for member in members if member["status"] == "finished"]
    row: dict[str, Any] = {"n": len(finished), "asked": len(members)}
    for name in measures(None, metric):
        row[name] = mean_and_deviation([member[name] for member in finished if member[name] is not None])
    return row


def mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation of some values, None if there are too few."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def with_spread(mean: float | None, deviation: float | None, show: Callable[[float], str], unit: str = "") -> str:
    """Format a mean over seeds, with its standard deviation if there is one.

    >>> with_spread(91.5, 0.25, "{:.2f}".format, " %"), with_spread(0.5, None, "{:.2f}".format)
    ('91.50 ± 0.25 %', '0.50')
    """
    if mean is None:
        return MISSING
    return show(mean) + ("" if deviation is None else f" ± {show(deviation).lstrip('+')}") + unit


def paired_differences(result: Result) -> Table:
    """Return the difference of every two methods at each budget, seed by seed, with its 95 % interval."""
    metric, rows = metric_in(result), []
    for first, second in itertools.combinations(result["methods"], 2):
        ours, theirs = (
            {seed: score for seed, score in row.get("by_seed", {}).items() if score is not None}
            for row in (first, second)
        )
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if first["budget"] == second["budget"] and differences:
            mean, half = statistics.fmean(differences), half_interval(differences)
            ends = [] if half is None else [metric.number(mean + sign * half, sign=True) for sign in (-1, 1)]
            cells = (f"{first['budget']:g}", str(len(differences)), metric.number(mean, sign=True), " to ".join(ends))
            rows.append((f"{first['method']} less {second['method']}", *cells))
    titles = ("methods", "budget", "n", f"{metric.label}, mean difference", "95 % interval")
    return text_table(f"{result['recipe']}: differences between methods, seed by seed", titles, rows)


def half_interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean (Student's t); None for fewer than two values.

    >>> round(half_interval([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return None
    quantiles = [float(word) for word in _T_QUANTILES.split()]
    return quantiles[min(len(values) - 1, len(quantiles)) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def tabulate(result: Result) -> Table:
    """Return the table of a comparison."""
    metric, several = metric_in(result), len({row["budget"] for row in result["methods"]}) > 1
    unit, held_out = f" {metric.unit}".rstrip(), f"validation_{metric.name}"

    def percent(value: float) -> str:
        return f"{100 * value:.1f}"

    def has(name: str) -> bool:
        return any(member[name] is not None for member in result["members"])

    shows: dict[str, tuple[str, Callable[[float], str], str]] = {
        f"validation {metric.label}": (held_out, metric.number, unit),
        f"test {metric.label}" if has(held_out) else metric.label: (metric.name, metric.number, unit),
        "change": ("change", lambda value: metric.number(value, sign=True), ""),
        "MACs left": ("macs_left", percent, " %"),
        "parameters left": ("params_left", percent, " %"),
        "latency, batch 1": ("latency_ms", "{:.2f}".format, " ms"),
        "time": ("seconds", "{:,.0f}".format, " s"),
    }
    shows = {title: show for title, show in shows.items() if show[0] not in (held_out, "latency_ms") or has(show[0])}
    cells = []
    for row in result["methods"]:
        budget = [f"{row['budget']:g}"] if several else []
        seeds = str(row["n"]) if row["n"] == row["asked"] else f"{row['n']} of {row['asked']}"
        numbers = [with_spread(row[key]["mean"], row[key]["sd"], show, unit) for key, show, unit in shows.values()]
        cells.append([row["method"], *budget, seeds, *numbers])
    titles = ("method", *(["budget"] if several else []), "n", *shows)
    return text_table(f"{result['recipe']}: methods compared", titles, cells, _notes(result, metric, several))


def _notes(result: Result, metric: Metric, several: bool) -> list[str]:
    """Return the lines below a table: settings, members that are missing, and versions."""
    budgets = "Budgets as fractions" if several else f"Budget {result['budget']:g}"
    notes = [
        f"{budgets} of the {COSTS[result['of']]}, {result['epochs']} epochs of search, "
        f"{result['finetune_epochs']} of fine-tuning; mean ± sample standard deviation over n seeds."
    ]
    dense = result[f"dense_{metric.name}"]
    if dense is not None:
        notes.append(f"Dense network: {metric.label} {metric.show(dense)}.")
    if not metric.higher_is_better:
        notes.append(f"{metric.title}: {metric.direction}.")
    missing = [
        f"{member['name']}: {member['status']}" + ("" if member["error"] is None else f": {member['error']}")
        for member in result["members"]
        if member["status"] != "finished"
    ]
    if missing:
        notes.append(f"Not in the table: {'; '.join(missing)}")
    made = {name: " and ".join(found[:12] for found in values) for name, values in result["made_with"].items()}
    versions = ", ".join(f"{name} {text}" for name, text in made.items() if text)
    return [*notes, f"Made with {versions}."] if versions else notes


def made_with(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the commits and versions that finished runs were made with; more than one if they differ."""
    found: dict[str, set[str]] = {name: set() for name in MADE_WITH}
    for folder in folders:
        if (folder / "summary.json").exists() and (folder / "environment.json").exists():
            environment = read_json(folder / "environment.json")
            versions = {"commit": environment["commit"], **environment["packages"]}
            for name in MADE_WITH:
                found[name] |= {versions[name]} - {None}
    return {name: sorted(values) for name, values in found.items()}
