"""The heat map of open probability for papers: gate by epoch, all layers in one picture."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from depl0.reports.figures.canvas import INK, new_figure
from depl0.reports.gates import GateHistory

COLOURS = "cividis"


def figure(history: GateHistory, title: str) -> Figure:
    """Return the heat map of a run. Every layer is as high as it has gates, and high enough to be seen."""
    most = max(len(matrix) for matrix in history.groups.values())
    heights = [max(len(matrix), most / 12) for matrix in history.groups.values()]
    names = list(history.groups)
    made = new_figure(7.5, min(1.4 + 0.42 * len(names), 18.0))
    cells = made.subplots(len(names), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    picture = None
    for cell, name in zip(cells, names, strict=True):
        cell.grid(visible=False)
        edges = _edges(history.epochs)
        picture = cell.pcolormesh(
            edges, np.arange(len(history.groups[name]) + 1), history.groups[name], cmap=COLOURS, vmin=0, vmax=1,
            rasterized=True,
        )  # fmt: skip
        cell.set_yticks([])
        cell.invert_yaxis()
        short = name if len(name) <= 30 else "…" + name[-29:]
        cell.set_ylabel(f"{short}  ({len(history.groups[name])})", rotation=0, ha="right", va="center", fontsize=9)
        cell.tick_params(axis="x", length=0 if cell is not cells[-1] else 3.5)
        cell.spines[["left", "bottom"]].set_visible(False)
    cells[0].set_title(f"{title}: open probability of every gate")
    cells[-1].set_xlabel("epoch")
    assert picture is not None
    bar = made.colorbar(
        picture, ax=list(cells), format=PercentFormatter(1.0, symbol=" %"), aspect=5 * made.get_figheight(), pad=0.02
    )
    bar.outline.set_edgecolor(INK)
    return made


def _edges(epochs: list[float]) -> list[float]:
    """Return the borders of the columns: an epoch's values are drawn around its number."""
    if len(epochs) == 1:
        return [epochs[0] - 0.5, epochs[0] + 0.5]
    inner = [(a + b) / 2 for a, b in pairwise(epochs)]
    return [epochs[0] - (inner[0] - epochs[0]), *inner, epochs[-1] + (epochs[-1] - inner[-1])]
