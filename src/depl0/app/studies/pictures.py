"""The picture of a comparison at several budgets: a line for each method, with its spread shaded."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from depl0._util.io import atomic_write
from depl0.app.studies.measures import AGREEMENTS, share, shown_agreement
from depl0.app.studies.study import Result
from depl0.app.tasks import metric_in
from depl0.gates.threshold import COSTS

COLOURS = ("#1b7837", "#2166ac", "#d6604d", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d", "#8c510a", "#01665e")
MARKERS = "oDs^vPX<>*"
DENSE = "#888888"


def draw_comparison(result: Result, folder: Path) -> None:
    """Write ``comparison.png`` and ``comparison.svg``, unless there is a single budget or no finished member.

    If networks were compared with the dense one, as after ``--quick``, metric and agreement are both drawn, against the
    cost and against the measured milliseconds.
    """
    metric = metric_in(result)
    done = [row for row in result["methods"] if row[metric.name]["mean"] is not None]
    if len({row["budget"] for row in result["methods"]}) < 2 or not done:
        return
    agreement = shown_agreement(result["members"])
    across = ("cost_left",) if agreement is None else ("cost_left", "latency_ms")
    upwards = (metric.name,) if agreement is None else (metric.name, agreement)
    size = (1.0 + 6.0 * len(across), 1.0 + 3.6 * len(upwards))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(upwards), len(across), squeeze=False)
    for panel, (y, x) in zip(panels.flat, itertools.product(upwards, across), strict=True):
        _draw_panel(panel, result, done, x, y)
    if agreement is None:
        panels.flat[0].set_title(_title(result))
    else:
        figure.suptitle(_title(result))
    write_picture(figure, folder, "comparison")


def _draw_panel(axes: Axes, result: Result, done: list[dict[str, Any]], x: str, y: str) -> None:
    """Draw one number of all networks against another."""
    metric = metric_in(result)
    show = metric.show if y == metric.name else share
    methods = list(dict.fromkeys(row["method"] for row in done))
    for place, method in enumerate(methods):
        rows = sorted((row for row in done if row["method"] == method), key=lambda row: row[x]["mean"])
        _draw_method(axes, rows, x, y, method, place)
        if len(methods) == 1:
            _label_points(axes, rows, x, y, show)
    dense = result[f"dense_{metric.name}"] if y == metric.name else None
    if dense is not None:
        axes.axhline(dense, color=DENSE, linestyle=":", linewidth=1.2, label=f"dense: {metric.show(dense)}")
    _label_axes(axes, result, x, y)
    axes.legend(loc="best", frameon=False)


def _draw_method(axes: Axes, rows: list[dict[str, Any]], x: str, y: str, method: str, place: int) -> None:
    costs = [row[x]["mean"] for row in rows]
    means = [row[y]["mean"] for row in rows]
    spreads = [row[y]["sd"] or 0.0 for row in rows]
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.plot(costs, means, color=colour, marker=marker, markersize=5, linewidth=1.4, label=method)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(costs, low, high, color=colour, alpha=0.18, linewidth=0)


def _label_points(axes: Axes, rows: list[dict[str, Any]], x: str, y: str, show: Callable[[float], str]) -> None:
    for row in rows:
        point, text = (row[x]["mean"], row[y]["mean"]), show(row[y]["mean"])
        axes.annotate(text, point, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)
    axes.margins(x=0.1, y=0.15)


def _title(result: Result) -> str:
    return f"{result['recipe']}: {result['model']} on {result['data'].partition(':')[0]}"


def _label_axes(axes: Axes, result: Result, x: str, y: str) -> None:
    metric = metric_in(result)
    if x == "cost_left":
        axes.set_xlabel(f"share of the {COSTS[result['of']]} left")
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    else:
        axes.set_xlabel("latency, batch 1 (ms)")
    if y == metric.name:
        remarks = [metric.unit] * bool(metric.unit) + [metric.direction] * (not metric.higher_is_better)
        axes.set_ylabel(f"test {metric.label}" + (f" ({', '.join(remarks)})" if remarks else ""))
    else:
        axes.set_ylabel(f"{AGREEMENTS[y]} (with the dense network)")
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def write_picture(figure: Figure, folder: Path, name: str) -> None:
    """Write a picture as PNG and SVG, the same bytes for the same numbers."""
    with matplotlib.rc_context({"svg.hashsalt": "depl0"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            atomic_write(folder / f"{name}.{kind}", buffer.getvalue())
