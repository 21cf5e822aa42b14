"""The figures of a study: a line for each method over the budgets, and the metric by epoch over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from depl0._util.io import read_json
from depl0.app.reports.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Drawing
from depl0.app.reports.figures import series
from depl0.app.reports.report import StudyPart
from depl0.app.reports.run import Run, read_runs
from depl0.app.runs.checkpoint import wrap_content_errors
from depl0.app.studies.study import Result
from depl0.app.studies.tables import paired_differences, tabulate
from depl0.app.tasks import metric_in
from depl0.errors import InputError
from depl0.gates.threshold import COSTS

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, GREY)
MARKERS = "oDs^vPX<>*"
SIZE = 7.0, 4.4


def comparison(result: Result) -> Drawing | None:
    """Return the metric against the cost for a comparison at several budgets, None without finished members."""
    metric, across = metric_in(result), f"fraction of the {COSTS[result['of']]} left"
    done = [row for row in result["methods"] if row[metric.name]["mean"] is not None]
    if len({row["budget"] for row in result["methods"]}) < 2 or not done:
        return None

    def draw(axes: Axes) -> None:
        _draw_methods(axes, result, done)
        axes.set_xlabel(across)

    return Drawing("comparison", f"{metric.label} by {across}", *SIZE, draw)


def _draw_methods(axes: Axes, result: Result, done: list[dict[str, Any]]) -> None:
    """Draw a line for each method with its spread shaded."""
    metric, methods = metric_in(result), list(dict.fromkeys(row["method"] for row in done))
    for place, method in enumerate(methods):
        rows = sorted((row for row in done if row["method"] == method), key=lambda row: row["cost_left"]["mean"])
        xs, ys = (np.array([row[name]["mean"] for row in rows]) for name in ("cost_left", metric.name))
        deviations = np.array([row[metric.name]["sd"] or 0.0 for row in rows])
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(xs, ys, color=colour, marker=MARKERS[place % len(MARKERS)], markersize=5, label=method)
        axes.fill_between(xs, ys - deviations, ys + deviations, color=colour, alpha=0.18, linewidth=0)
        for point in zip(xs, ys, strict=True) if len(methods) == 1 else ():
            text = metric.show(point[1])
            axes.annotate(text, point, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)
    if len(methods) == 1:
        axes.margins(x=0.1, y=0.15)
    dense = result[f"dense_{metric.name}"]
    if dense is not None:
        axes.axhline(dense, color=GREY, linestyle=":", linewidth=1.2, label=f"dense: {metric.show(dense)}")
    axes.set_title(f"{result['recipe']}: {result['model']} on {result['data'].partition(':')[0]}")
    remarks = [metric.unit] * bool(metric.unit) + [metric.direction] * (not metric.higher_is_better)
    axes.set_ylabel(f"test {metric.label}" + (f" ({', '.join(remarks)})" if remarks else ""))
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.legend(loc="best")


# -- the page ----------------------------------------------------------------------------------------------------------


def read_study(folder: Path) -> tuple[list[Run], StudyPart]:
    """Return the finished runs of a comparison, and the comparison's own part of the page."""
    with wrap_content_errors(str(folder / "comparison.json")):
        result = read_json(folder / "comparison.json")
        tables = [table for table in (tabulate(result), paired_differences(result)) if table.rows]
        drawing = comparison(result)
        names = [member["name"] for member in result["members"] if member["status"] == "finished"]
    if not names:
        raise InputError(f"no run of the study {folder} has finished.", hint="call depl0 compare again.")
    runs, groups = read_runs([folder / name for name in names]), dict[str, list[Run]]()
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name.rpartition("/seed-")[0] or name, []).append(run)
    drawings = [] if drawing is None else [drawing]
    if any(_judged(run)[0] for run in runs):
        label = "Metric by epoch, mean and range over seeds"
        drawings.append(Drawing("curves", label, *SIZE, lambda axes: draw_curves(axes, groups)))
    return runs, StudyPart(str(result["recipe"]), tuple(tables), tuple(drawings))


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
    axes.set_title(f"{first.metric.title} by epoch: mean, and range over seeds")
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{first.split} {first.metric.label}" + (f", {first.metric.unit}" if first.metric.unit else ""))
    axes.legend(loc="best")


def _judged(run: Run) -> tuple[list[float], list[float]]:
    return series(run, f"{run.split}_{run.metric.name}")
