"""The picture of a comparison at several budgets: a line a method, with its spread shaded."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from depl0.app.studies.picture import label_axes, write_picture
from depl0.app.studies.publish import Result
from depl0.app.tasks import metric_in

COLOURS = ("#1b7837", "#2166ac", "#d6604d", "#762a83", "#e08214", "#4d4d4d", "#35978f", "#c51b7d", "#8c510a", "#01665e")
MARKERS = "oDs^vPX<>*"


def draw_lines(result: Result, folder: Path) -> None:
    """Write ``methods.png`` and ``methods.svg``; nothing where there is one budget, or while nothing is finished."""
    name = metric_in(result).name
    done = [row for row in result["methods"] if row[name]["mean"] is not None]
    if len({row["budget"] for row in result["methods"]}) < 2 or not done:
        return
    figure = Figure(figsize=(7.0, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, method in enumerate(dict.fromkeys(row["method"] for row in done)):
        rows = sorted((row for row in done if row["method"] == method), key=lambda row: row["macs_left"]["mean"])
        costs = [row["macs_left"]["mean"] for row in rows]
        means, spreads = [row[name]["mean"] for row in rows], [row[name]["sd"] or 0.0 for row in rows]
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.plot(costs, means, color=colour, marker=marker, markersize=5, linewidth=1.4, label=method)
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(costs, low, high, color=colour, alpha=0.18, linewidth=0)
    label_axes(axes, {**result, "of": "macs"})
    axes.legend(loc="lower right", frameon=False)
    write_picture(figure, folder, "methods")
