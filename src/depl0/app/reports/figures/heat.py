"""The heat map of open probability for papers: gate by epoch, all layers in one picture."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from depl0.app.reports.figures.canvas import INK, new_figure
from depl0.app.reports.gates import GateHistory, Matrix

COLOURS = "cividis"
NAMED = 50
"""up to so many layers are named; of more, about so many are"""
PIXELS = 1600, 800
"""rows and columns of the picture at most: a network may have a million gates"""


def figure(history: GateHistory, title: str) -> Figure:
    """Return the heat map of a run. Every layer is as high as it has gates, and high enough to be seen.

    It is one picture whatever the number of layers: axes for each of them take time that grows with its square.
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
    if len(names) <= NAMED:
        axes.hlines(borders[1:-1], edges[0], edges[-1], colors="white", linewidth=0.8)
    chosen = range(0, len(names), -(-len(names) // NAMED))
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
    """Return the pixels of the picture: the gate and the epoch that lie under the middle of each."""
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
