"""Figures of the layers: bars of filters with the pruned fraction, and the heat map of every gate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from depl0.app.reports.canvas import GREEN, GREY, INK, Drawing
from depl0.app.reports.run import GateHistory, Layer, Run

NAMED = 24
"""maximum number of layers that are named below their bars; more are numbered"""
LABELLED = 60
"""maximum number of layers whose pruned fraction is printed above their bars"""
COLOURS = "cividis"
HEAT_NAMED = 50
"""maximum number of layers of the heat map that are named; of more, about this number"""
ROWS = 1600
"""maximum number of rows of the heat map's picture: a network may have a million gates"""


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
    if len(layers) <= LABELLED:
        _label_pruned(axes, layers)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, columnspacing=1.2)


def _label_pruned(axes: Axes, layers: Sequence[Layer]) -> None:
    """Print the pruned fraction of each layer above its bar."""
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


def structure(run: Run, top: int | None = None) -> Drawing | None:
    """Return the drawing of a finished run's layers."""
    layers = run.layers
    if not layers:
        return None
    longest = max(len(layer.name) for layer in layers) if len(layers) <= NAMED else 0
    size = min(max(4.6, 1.6 + 0.14 * len(layers)), 13.0), 3.2 + 0.06 * min(longest, 26)
    label = f"Filters and prune ratio of {len(layers)} layers of {run.label}"
    return Drawing("structure", label, *size, lambda axes: draw_structure(axes, layers, "", top))


def tallest(runs: Sequence[Run]) -> int | None:
    """Return the filters of the largest layer if all runs have the same network, so that bars are comparable."""
    networks = {tuple((layer.name, layer.channels) for layer in run.layers) for run in runs if run.layers}
    return max(channels for _, channels in networks.pop()) if len(networks) == 1 else None


def heat_map(history: GateHistory, title: str) -> Drawing:
    """Return the drawing of every gate's open probability by epoch, for files."""
    height = min(1.4 + 0.42 * len(history.groups), 18.0)
    label = f"{title}: open probability of every gate"
    return Drawing("gates", label, 7.5, height, lambda axes: _draw_gates(axes, history, label))


def _draw_gates(axes: Axes, history: GateHistory, title: str) -> None:
    """Draw all gates as one picture, in which a layer's height is proportional to its gates."""
    epochs, gates = history.epochs, np.concatenate(list(history.groups.values()))
    borders = np.cumsum([0, *map(len, history.groups.values())])
    inner = [(a + b) / 2 for a, b in pairwise(epochs)] or [epochs[0] + 0.5]
    edges = [2 * epochs[0] - inner[0], *inner[: len(epochs) - 1], 2 * epochs[-1] - inner[-1]]
    if len(epochs) == 1:
        edges[-1] = inner[0]
    column = np.searchsorted(edges, np.linspace(edges[0], edges[-1], 801)[:-1], side="right") - 1
    picture = axes.imshow(
        gates[:: -(-len(gates) // ROWS), column], cmap=COLOURS, vmin=0, vmax=1, aspect="auto",
        interpolation="nearest", extent=(edges[0], edges[-1], float(len(gates)), 0.0),
    )  # fmt: skip
    if len(history.groups) <= HEAT_NAMED:
        axes.hlines(borders[1:-1], edges[0], edges[-1], colors="white", linewidth=0.8)
    labels = [f"{_cut(name, 30)}  ({len(matrix)})" for name, matrix in history.groups.items()]
    step = -(-len(labels) // HEAT_NAMED)
    axes.set_yticks(((borders[:-1] + borders[1:]) / 2)[::step], labels[::step])
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.grid(visible=False)
    axes.set_title(title)
    axes.set_xlabel("epoch")
    assert axes.figure is not None
    bar = axes.figure.colorbar(picture, ax=axes, format=PercentFormatter(1.0, symbol=" %"), aspect=40, pad=0.02)
    bar.outline.set_edgecolor(INK)
