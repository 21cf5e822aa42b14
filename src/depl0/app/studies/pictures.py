"""The picture of a comparison at several budgets: a line for each method, with its spread shaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from depl0._util.io import write_whole
from depl0.app.studies.study import Result
from depl0.app.tasks import Metric, metric_in
from depl0.gates.threshold import COSTS

COLOURS = ("#1b7837", "#2166ac", "#d6604d", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d", "#8c510a", "#01665e")
MARKERS = "oDs^vPX<>*"
DENSE = "#888888"


def draw_comparison(result: Result, folder: Path) -> None:
    """Write ``comparison.png`` and ``comparison.svg``; nothing for a single budget, or while nothing is finished."""
    metric = metric_in(result)
    done = [row for row in result["methods"] if row[metric.name]["mean"] is not None]
    if len({row["budget"] for row in result["methods"]}) < 2 or not done:
        return
    figure = Figure(figsize=(7.0, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(row["method"] for row in done))
    for place, method in enumerate(methods):
        rows = sorted((row for row in done if row["method"] == method), key=lambda row: row["cost_left"]["mean"])
        _draw_method(axes, metric, rows, method, place)
        if len(methods) == 1:
            _label_budgets(axes, metric, rows)
    dense = result[f"dense_{metric.name}"]
    if dense is not None:
        axes.axhline(dense, color=DENSE, linestyle=":", linewidth=1.2, label=f"dense: {metric.show(dense)}")
    _label_axes(axes, result, metric)
    axes.legend(loc="best", frameon=False)
    write_picture(figure, folder, "comparison")


def _draw_method(axes: Axes, metric: Metric, rows: list[dict[str, Any]], method: str, place: int) -> None:
    costs = [row["cost_left"]["mean"] for row in rows]
    means = [row[metric.name]["mean"] for row in rows]
    spreads = [row[metric.name]["sd"] or 0.0 for row in rows]
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.plot(costs, means, color=colour, marker=marker, markersize=5, linewidth=1.4, label=method)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(costs, low, high, color=colour, alpha=0.18, linewidth=0)


def _label_budgets(axes: Axes, metric: Metric, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        point, text = (row["cost_left"]["mean"], row[metric.name]["mean"]), metric.show(row[metric.name]["mean"])
        axes.annotate(text, point, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)
    axes.margins(x=0.1, y=0.15)


def _label_axes(axes: Axes, result: Result, metric: Metric) -> None:
    axes.set_title(f"{result['recipe']}: {result['model']} on {result['data'].partition(':')[0]}")
    axes.set_xlabel(f"share of the {COSTS[result['of']]} left")
    remarks = [metric.unit] * bool(metric.unit) + [metric.direction] * (not metric.higher_is_better)
    axes.set_ylabel(f"test {metric.label}" + (f" ({', '.join(remarks)})" if remarks else ""))
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def write_picture(figure: Figure, folder: Path, name: str) -> None:
    """Write a picture as PNG and SVG, the same bytes for the same numbers."""
    with matplotlib.rc_context({"svg.hashsalt": "depl0"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            write_whole(folder / f"{name}.{kind}", buffer.getvalue())
