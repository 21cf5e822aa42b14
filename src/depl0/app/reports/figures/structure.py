"""The paper's structure figure: one bar a layer, grey = original filters, green = kept, red curve = prune ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from depl0.app.reports.figures.canvas import GREEN, GREY, RED, new_figure
from depl0.app.reports.run import Layer, Run

NAMED = 24
"""up to so many layers are named below their bars; more are numbered"""


def width(layers: Sequence[Layer]) -> float:
    """Return the inches that so many bars need."""
    return min(max(4.6, 1.6 + 0.14 * len(layers)), 13.0)


def height(layers: Sequence[Layer]) -> float:
    """Return the inches that bars and names need."""
    return 3.2 + (0.06 * min(_longest(layers), 26) if len(layers) <= NAMED else 0)


def _longest(layers: Sequence[Layer]) -> int:
    return max((len(layer.name) for layer in layers), default=0)


def draw(axes: Axes, layers: Sequence[Layer], title: str, top: int | None = None) -> None:
    """Draw the layers of one run; ``top`` is the height of the tallest bar of all runs beside it."""
    places = list(range(1, len(layers) + 1))
    axes.bar(places, [layer.channels for layer in layers], color=GREY, width=0.82, label="original filters")
    axes.bar(places, [layer.kept for layer in layers], color=GREEN, width=0.82, label="kept")
    tallest = top or max((layer.channels for layer in layers), default=1)
    axes.set_ylim(0, 1.05 * tallest)
    axes.set_ylabel("filters")
    axes.set_title(title, pad=24)
    axes.grid(axis="x", visible=False)
    axes.set_xlim(0.4, len(layers) + 0.6)
    if len(layers) <= NAMED:
        names = [_cut(layer.name) for layer in layers]
        flat = max(map(len, names), default=0) * len(names) <= 36
        axes.set_xticks(places, names, rotation=0 if flat else 55, ha="center" if flat else "right", fontsize=9)
        if not flat:
            for label in axes.get_xticklabels():
                label.set_rotation_mode("anchor")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("layer")
    ratio = axes.twinx()
    ratio.plot(
        places, [layer.pruned for layer in layers], color=RED, marker="o", markersize=3.5, label="pruned", clip_on=False
    )
    ratio.set_ylim(0, 1.05)
    ratio.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    ratio.set_ylabel("pruned")
    ratio.grid(visible=False)
    ratio.spines["right"].set_visible(True)
    handles = [item for part in (axes, ratio) for item in part.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, columnspacing=1.2)


def _cut(name: str, longest: int = 26) -> str:
    return name if len(name) <= longest else "…" + name[1 - longest :]


def figure(runs: Sequence[Run]) -> Figure:
    """Return the figure of several runs side by side."""
    shown = [run for run in runs if run.layers]
    top = tallest(shown)
    columns = min(len(shown), max(1, int(16 // max(width(run.layers) for run in shown))))
    rows = math.ceil(len(shown) / columns)
    made = new_figure(
        columns * max(width(run.layers) for run in shown), rows * max(height(run.layers) for run in shown)
    )
    grid = made.subplots(rows, columns, squeeze=False)
    for place, cell in enumerate(grid.flat):
        if place < len(shown):
            draw(cell, shown[place].layers, shown[place].label, top)
        else:
            cell.set_visible(False)
    return made


def tallest(runs: Sequence[Run]) -> int | None:
    """Return the filters of the largest layer, where all runs are of one network and so compare bar by bar."""
    networks = {tuple((layer.name, layer.channels) for layer in run.layers) for run in runs if run.layers}
    return max(channels for _, channels in networks.pop()) if len(networks) == 1 else None
