"""The figures of a study: a line for each method over the budgets, and the metric by epoch over its seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from depl0.app.reports import curves
from depl0.app.reports.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Drawing, style, write
from depl0.app.reports.html import StudyPart
from depl0.app.reports.run import Run
from depl0.app.reports.show import fraction
from depl0.app.studies.measures import AGREEMENTS, shown_agreement
from depl0.app.studies.study import Result
from depl0.app.table import Table
from depl0.app.tasks import Metric, metric_in
from depl0.gates.threshold import COSTS

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, GREY)
MARKERS = "oDs^vPX<>*"
SIZE = 7.0, 4.4


def write_comparison(result: Result, folder: Path) -> None:
    """Write ``comparison.png``, ``.svg`` and ``.pdf``, and further pictures if agreements were measured."""
    with style():
        for drawing in comparison(result):
            write(drawing.figure(), folder, drawing.name)


def comparison(result: Result) -> list[Drawing]:
    """Return the drawings of a comparison at several budgets, none for a single budget or without finished members.

    If networks were compared with the dense one, as after ``--quick``, metric and agreement are both drawn, against the
    cost and against the measured milliseconds.
    """
    metric = metric_in(result)
    done = [row for row in result["methods"] if row[metric.name]["mean"] is not None]
    if len({row["budget"] for row in result["methods"]}) < 2 or not done:
        return []
    agreement = shown_agreement(result["members"])
    made = []
    for y, x in itertools.product(
        [metric.name] + ([] if agreement is None else [agreement]),
        ["cost_left"] + ([] if agreement is None else ["latency_ms"]),
    ):

        def draw(axes: Axes, x: str = x, y: str = y) -> None:
            _draw_methods(axes, result, done, x, y)

        name = "comparison" + ("" if y == metric.name else f"-{y}") + ("" if x == "cost_left" else "-latency")
        made.append(Drawing(name, f"{_title(metric, y)} by {_across(result, x)}", *SIZE, draw))
    return made


def _title(metric: Metric, y: str) -> str:
    if y in AGREEMENTS:
        return f"{AGREEMENTS[y]} (with the dense network)"
    remarks = [metric.unit] * bool(metric.unit) + [metric.direction] * (not metric.higher_is_better)
    return f"test {metric.label}" + (f" ({', '.join(remarks)})" if remarks else "")


def _across(result: Result, x: str) -> str:
    return f"fraction of the {COSTS[result['of']]} left" if x == "cost_left" else "latency, batch 1 (ms)"


def _draw_methods(axes: Axes, result: Result, done: list[dict[str, Any]], x: str, y: str) -> None:
    """Draw one number of all networks against another, a line for each method with its spread shaded."""
    metric, methods = metric_in(result), list(dict.fromkeys(row["method"] for row in done))
    for place, method in enumerate(methods):
        rows = sorted((row for row in done if row["method"] == method), key=lambda row: row[x]["mean"])
        xs, ys = (np.array([row[name]["mean"] for row in rows]) for name in (x, y))
        deviations = np.array([row[y]["sd"] or 0.0 for row in rows])
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(xs, ys, color=colour, marker=MARKERS[place % len(MARKERS)], markersize=5, label=method)
        axes.fill_between(xs, ys - deviations, ys + deviations, color=colour, alpha=0.18, linewidth=0)
        for point in zip(xs, ys, strict=True) if len(methods) == 1 else ():
            text = metric.show(point[1]) if y == metric.name else fraction(point[1])
            axes.annotate(text, point, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)
    if len(methods) == 1:
        axes.margins(x=0.1, y=0.15)
    dense = result[f"dense_{metric.name}"] if y == metric.name else None
    if dense is not None:
        axes.axhline(dense, color=GREY, linestyle=":", linewidth=1.2, label=f"dense: {metric.show(dense)}")
    axes.set_title(f"{result['recipe']}: {result['model']} on {result['data'].partition(':')[0]}")
    axes.set_xlabel(_across(result, x))
    axes.set_ylabel(_title(metric, y))
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        if name == "cost_left" or name in AGREEMENTS:
            axis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.legend(loc="best")


# -- the page ----------------------------------------------------------------------------------------------------------


def study_part(result: Result, tables: Sequence[Table], groups: Mapping[str, Sequence[Run]], folder: Path) -> StudyPart:
    """Return the study's part of the page; ``groups`` are its runs, grouped over seeds."""
    links = []
    for run in (run for runs in groups.values() for run in runs):
        address = run.path.relative_to(folder).as_posix()
        page = "report.html" if (run.path / "report.html").is_file() else ""
        links.append((address, f"{address}/{page}"))
    drawings = comparison(result)
    if any(_judged(run)[0] for runs in groups.values() for run in runs):
        label = "Metric by epoch, mean and range over seeds"
        drawings.append(Drawing("curves", label, *SIZE, lambda axes: draw_curves(axes, groups)))
    return StudyPart(str(result["recipe"]), tuple(t for t in tables if t.rows), tuple(drawings), tuple(links))


def draw_curves(axes: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw the metric by epoch: the mean of each group as a line, the range over its seeds shaded."""
    for place, (name, runs) in enumerate(groups.items()):
        found = [(xs, ys) for xs, ys in map(_judged, runs) if xs]
        if not found:
            continue
        epochs = min((xs for xs, _ in found), key=len)
        values = np.array([ys[: len(epochs)] for _, ys in found])
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(epochs, values.mean(0), color=colour, label=f"{name} (n = {len(values)})")
        if len(values) > 1:
            axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    first = next(run for runs in groups.values() for run in runs)
    axes.set_title("Metric by epoch: mean, and range over seeds")
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{first.split} {first.metric.label}" + (f", {first.metric.unit}" if first.metric.unit else ""))
    axes.legend(loc="best")


def _judged(run: Run) -> tuple[list[float], list[float]]:
    return curves.series(run, f"{run.split}_{run.metric.name}")
