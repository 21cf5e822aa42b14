"""Figures of the layers: bars of filters with the pruned share, and the heat map of every gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from depl0.app.reports.canvas import GREEN, GREY, INK, new_figure
from depl0.app.reports.run import GateHistory, Layer, Matrix, Run

NAMED = 24
"""maximum number of layers that are named below their bars; more are numbered"""
LABELLED = 60
"""maximum number of layers whose pruned fraction is printed above their bars"""


def width(layers: Sequence[Layer]) -> float:
    """Return the width in inches for these bars."""
    return min(max(4.6, 1.6 + 0.14 * len(layers)), 13.0)


def height(layers: Sequence[Layer]) -> float:
    """Return the height in inches for bars and names."""
    return 3.2 + (0.06 * min(_longest(layers), 26) if len(layers) <= NAMED else 0)


def _longest(layers: Sequence[Layer]) -> int:
    return max((len(layer.name) for layer in layers), default=0)


def draw_structure(axes: Axes, layers: Sequence[Layer], title: str, top: int | None = None) -> None:
    """Draw the layers of one run; ``top`` is the height of the tallest bar of all runs beside it."""
    places = list(range(1, len(layers) + 1))
    axes.bar(places, [layer.channels for layer in layers], color=GREY, width=0.82, label="original filters")
    axes.bar(places, [layer.kept for layer in layers], color=GREEN, width=0.82, label="kept")
    tallest = top or max((layer.channels for layer in layers), default=1)
    axes.set_ylim(0, (1.2 if 12 < len(layers) <= LABELLED else 1.1) * tallest)
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
    _label_shares(axes, layers)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, columnspacing=1.2)


def _label_shares(axes: Axes, layers: Sequence[Layer]) -> None:
    """Print the pruned fraction of each layer above its bar."""
    if len(layers) > LABELLED:
        return
    upright = len(layers) > 12
    for place, layer in enumerate(layers, start=1):
        if layer.channels:
            axes.annotate(
                f"−{round(100 * layer.pruned)} %" if layer.kept < layer.channels else "0 %", (place, layer.channels),
                xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", rotation=90 if upright else 0,
                fontsize=7 if upright else 8.5,
            )  # fmt: skip


def _cut(name: str, longest: int = 26) -> str:
    return name if len(name) <= longest else "…" + name[1 - longest :]


def structure(runs: Sequence[Run]) -> Figure:
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
            draw_structure(cell, shown[place].layers, shown[place].label, top)
        else:
            cell.set_visible(False)
    return made


def tallest(runs: Sequence[Run]) -> int | None:
    """Return the filters of the largest layer if all runs have the same network, so that bars are comparable."""
    networks = {tuple((layer.name, layer.channels) for layer in run.layers) for run in runs if run.layers}
    return max(channels for _, channels in networks.pop()) if len(networks) == 1 else None


# -- heat map ----------------------------------------------------------------------------------------------------------

COLOURS = "cividis"
HEAT_NAMED = 50
"""maximum number of layers of the heat map that are named; of more, about this number"""
PIXELS = 1600, 800
"""rows and columns of the picture at most: a network may have a million gates"""


def heat_map(history: GateHistory, title: str) -> Figure:
    """Return the heat map of a run.

    The height of a layer is proportional to its gates, with a visible minimum. All layers are in one picture, because
    the time for separate axes grows with the square of their number.
    """
    names, sizes = list(history.groups), [len(matrix) for matrix in history.groups.values()]
    heights = np.maximum(sizes, max(sizes) / 12)
    borders = np.concatenate([[0.0], np.cumsum(heights)])
    edges = _edges(history.epochs)
    made = new_figure(7.5, min(1.4 + 0.42 * len(names), 18.0))
    axes = made.subplots()
    axes.grid(visible=False)
    picture = axes.imshow(
        _sampled(list(history.groups.values()), borders, edges), cmap=COLOURS, vmin=0, vmax=1, aspect="auto",
        interpolation="nearest", extent=(edges[0], edges[-1], float(borders[-1]), 0.0),
    )  # fmt: skip
    if len(names) <= HEAT_NAMED:
        axes.hlines(borders[1:-1], edges[0], edges[-1], colors="white", linewidth=0.8)
    chosen = range(0, len(names), -(-len(names) // HEAT_NAMED))
    middle = (borders[:-1] + borders[1:]) / 2
    axes.set_yticks([middle[place] for place in chosen], [_label(names[place], sizes[place]) for place in chosen])
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(f"{title}: open probability of every gate")
    axes.set_xlabel("epoch")
    bar = made.colorbar(
        picture, ax=axes, format=PercentFormatter(1.0, symbol=" %"), aspect=5 * made.get_figheight(), pad=0.02
    )
    bar.outline.set_edgecolor(INK)
    return made


def _label(name: str, size: int) -> str:
    return f"{name if len(name) <= 30 else '…' + name[-29:]}  ({size})"


def _sampled(matrices: list[Matrix], borders: npt.NDArray[np.float64], edges: list[float]) -> Matrix:
    """Return the pixels of the picture: the gate and the epoch at the centre of each."""
    rows = np.linspace(0, borders[-1], min(4 * sum(map(len, matrices)), PIXELS[0]) + 1)
    columns = np.linspace(edges[0], edges[-1], min(4 * (len(edges) - 1), PIXELS[1]) + 1)
    epoch = np.searchsorted(edges, (columns[:-1] + columns[1:]) / 2, side="right") - 1
    middle = (rows[:-1] + rows[1:]) / 2
    group = np.searchsorted(borders, middle, side="right") - 1
    pixels = np.zeros((len(middle), len(epoch)), dtype=np.float32)
    for place, matrix in enumerate(matrices):
        here = group == place
        share = (middle[here] - borders[place]) / (borders[place + 1] - borders[place])
        if len(matrix):
            pixels[here] = matrix[np.minimum((share * len(matrix)).astype(int), len(matrix) - 1)][:, epoch]
    return pixels


def _edges(epochs: list[float]) -> list[float]:
    """Return the borders of the columns: an epoch's values are drawn around its number."""
    if len(epochs) == 1:
        return [epochs[0] - 0.5, epochs[0] + 0.5]
    inner = [(a + b) / 2 for a, b in pairwise(epochs)]
    return [epochs[0] - (inner[0] - epochs[0]), *inner, epochs[-1] + (epochs[-1] - inner[-1])]
