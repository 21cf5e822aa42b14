"""The figures of a run: training curves by epoch, and bars of filters with the pruned fraction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from depl0.app.reports.canvas import BLUE, GREEN, GREY, GRID, INK, ORANGE, SKY, Drawing
from depl0.app.reports.run import Layer, Run, dig

LOG_FROM = 30
"""ratio of largest to smallest value from which a quantity is drawn on a logarithmic axis"""
NAMED = 24
"""maximum number of layers that are named below their bars; more are numbered"""
LABELLED = 60
"""maximum number of layers whose pruned fraction is printed above their bars"""


def series(run: Run, *keys: str) -> tuple[list[float], list[float]]:
    """Return epochs and values under these keys of ``metrics.jsonl`` for search and fine-tuning."""
    xs, ys = [], []
    for place, line in _places(run, run.epochs):
        value = dig(line, *keys)
        if line.get("phase") in ("search", "finetune") and isinstance(value, (int, float)) and math.isfinite(value):
            xs.append(place)
            ys.append(float(value))
    return xs, ys


def _places(run: Run, lines: Sequence[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    """Return lines with their epochs; fine-tuning continues the axis of the search."""
    end = _end_of_search(run)
    return [
        (float(line["epoch"]) + (end if line.get("phase") == "finetune" else 0), line)
        for line in lines
        if isinstance(line.get("epoch"), (int, float))
    ]


def _end_of_search(run: Run) -> float:
    return float(max((line["epoch"] for line in run.epochs if line.get("phase") == "search"), default=0))


def _line(axes: Axes, run: Run, label: str, color: str, *keys: str, **how: Any) -> None:
    xs, ys = series(run, *keys)
    if xs:
        axes.plot(xs, ys, label=label, color=color, marker="o" if len(xs) == 1 else None, **how)


def _in_percent(axes: Axes, factor: float, top: float = math.inf) -> None:
    """Label the axis in percent; ticks above ``top`` have no label, because there is no accuracy of 101 %."""
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{round(factor * value, 6):g} %" if value <= top + 1e-9 else "")
    )


def _log_where_it_helps(axes: Axes) -> None:
    values = _values(axes)
    if values and min(values) > 0 and max(values) > LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


def _values(axes: Axes, but: float = 0.0) -> list[float]:
    """Return the values of all lines, without the first ones of each, up to a fraction of their number."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    return [float(y) for values in lines for y in values[int(but * len(values)) :]]


# -- panels ------------------------------------------------------------------------------------------------------------


def loss(axes: Axes, run: Run) -> str:
    """Draw the task's loss, and the minimised loss if it is different."""
    if series(run, "loss") != series(run, "task_loss"):
        added = "penalty" if run.recipe.penalty.weight else "distillation"
        _line(axes, run, f"with {added} (minimised)", ORANGE, "loss")
    _line(axes, run, "of the task, training images", BLUE, "task_loss")
    _log_where_it_helps(axes)
    return "Loss"


def metric(axes: Axes, run: Run) -> str:
    """Draw the metric on training images and on validation or test images, and the dense network's on the latter.

    The axis leaves out values of the first eighth of the epochs that are far from all later ones.
    """
    judged, dense = run.metric, run.value("dense", run.split)
    _line(axes, run, "training", ORANGE, f"train_{judged.name}", linewidth=1.2)
    _line(axes, run, run.split, BLUE, f"{run.split}_{judged.name}")
    if axes.lines:
        later = _values(axes, but=1 / 8)
        spread = max(later) - min(later)
        shown = [value for value in _values(axes) if min(later) - spread <= value <= max(later) + spread]
        shown += [] if dense is None else [dense]
        room = 0.06 * (max(shown) - min(shown)) or 0.02 * abs(max(shown)) or 1.0
        axes.set_ylim(min(shown) - room, max(shown) + room)
        if dense is not None:
            axes.axhline(dense, color=GREY, linestyle="--", linewidth=1.2, label=f"dense {judged.show(dense)}")
        if judged.unit == "%":
            _in_percent(axes, 1, top=100)
    return judged.title if judged.higher_is_better else f"{judged.title} ({judged.direction})"


def cost(axes: Axes, run: Run) -> str:
    """Draw expected and kept cost against the budget, and the events of the search."""
    of = "params" if run.recipe.gates.of == "params" else "macs"
    _line(axes, run, "expected", ORANGE, "expected", f"{of}_share")
    _line(axes, run, "kept", GREEN, "kept", f"{of}_share")
    if axes.lines:
        budget = run.recipe.gates.budget
        if budget is not None:
            axes.axhline(budget, color=INK, linestyle=":", linewidth=1.2, label=f"budget {budget:.0%}")
        epochs: dict[str, list[float]] = {}
        for place, line in _places(run, run.events):
            epochs.setdefault(line["event"], []).append(place)
        if cuts := epochs.get("compaction"):
            axes.plot(
                cuts, [0.025] * len(cuts), "|", color=SKY, markersize=9, markeredgewidth=1.8, label="channels cut"
            )
        for epoch in epochs.get("freezing", [])[:1]:
            axes.axvline(epoch, color=INK, linestyle="--", linewidth=1.2, label="frozen", clip_on=False)
        axes.set_ylim(0, 1.05)
        _in_percent(axes, 100)
    return "Parameters left" if of == "params" else "MACs left"


def rates(axes: Axes, run: Run) -> str:
    """Draw the learning rates of weights and gates."""
    _line(axes, run, "weights", BLUE, "weight_lr")
    _line(axes, run, "gates", ORANGE, "gate_lr")
    _log_where_it_helps(axes)
    return "Learning rate"


PANELS: tuple[Callable[[Axes, Run], str], ...] = (loss, metric, cost, rates)
"""each draws a panel and returns its title"""


def draw(axes: Axes, run: Run, panel: Callable[[Axes, Run], str]) -> None:
    """Draw one panel with its title and legend; fine-tuning is shaded."""
    title, of_search, tuned = panel(axes, run), panel is cost, _end_of_search(run)
    axes.set_xlabel("epoch of the search" if of_search else "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    epochs = [place for place, line in _places(run, run.epochs) if line.get("phase") != "dense"]
    first, last = min(epochs, default=0), max(epochs, default=1)
    if of_search and tuned:
        last = tuned
    elif tuned and any(line.get("phase") == "finetune" for line in run.epochs):
        axes.axvspan(tuned, last, color=GRID, alpha=0.4, linewidth=0, zorder=0, label="fine-tuning")
    axes.set_xlim(first if first < last else first - 1, last)
    axes.set_title(title, pad=40)  # above two lines of a legend, so that all panels have the same height
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=2 if len(labels) == 4 else 3,
            columnspacing=1.0, handlelength=1.5, labelspacing=0.25,
        )  # fmt: skip


def drawings(run: Run) -> list[Drawing]:
    """Return the panels for which a run has recorded values."""
    made = []
    for panel in PANELS:
        axes = Figure().subplots()
        title = panel(axes, run)
        if axes.lines:

            def drawn(axes: Axes, panel: Callable[[Axes, Run], str] = panel) -> None:
                draw(axes, run, panel)

            label = f"{title} of {run.label} by epoch"
            made.append(Drawing(panel.__name__, label, 4.6, 3.2, drawn))
    return made


# -- layers ------------------------------------------------------------------------------------------------------------


def widths(run: Run) -> Drawing | None:
    """Return the drawing of the open gates of every group by epoch; None if no gate has closed during the search."""
    lines = [line for line in run.epochs if line.get("phase") == "search" and line.get("open_gates")]
    totals = {name: group["gates"] for name, group in (run.get("groups") or {}).items() if group["gates"]}
    shares = np.array([[line["open_gates"].get(name, 0) / total for line in lines] for name, total in totals.items()])
    if not shares.size or shares.min() == 1:
        return None
    names = [name if len(name) <= 32 else f"…{name[-31:]}" for name in totals]

    def drawn(axes: Axes) -> None:
        edges = (lines[0]["epoch"] - 0.5, lines[-1]["epoch"] + 0.5, len(names) + 0.5, 0.5)
        image = axes.imshow(shares, "cividis", aspect="auto", vmin=0, vmax=1, interpolation="nearest", extent=edges)
        axes.grid(visible=False)
        axes.set_xlabel("epoch of the search")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(names) <= LABELLED:
            axes.set_yticks(range(1, len(names) + 1), names, fontsize=8.5)
        else:
            axes.set_ylabel("group of channels")
        axes.figure.colorbar(image, ax=axes, format=PercentFormatter(1, 0, " %"), pad=0.02)

    return Drawing("widths", f"Open gates of {run.label} by epoch", 8.0, min(1.2 + 0.19 * len(names), 11.0), drawn)


def structure(run: Run) -> Drawing | None:
    """Return the drawing of a finished run's layers."""
    layers = run.layers
    if not layers:
        return None
    longest = max(len(layer.name) for layer in layers) if len(layers) <= NAMED else 0
    size = min(max(4.6, 1.6 + 0.14 * len(layers)), 13.0), 3.2 + 0.06 * min(longest, 26)
    label = f"Filters and prune ratio of {len(layers)} layers of {run.label}"
    return Drawing("structure", label, *size, lambda axes: draw_structure(axes, layers, ""))


def draw_structure(axes: Axes, layers: Sequence[Layer], title: str) -> None:
    """Draw the filters of each layer and the kept ones, with the pruned fraction above each bar."""
    places = list(range(1, len(layers) + 1))
    axes.bar(places, [layer.channels for layer in layers], color=GREY, width=0.82, label="original filters")
    axes.bar(places, [layer.kept for layer in layers], color=GREEN, width=0.82, label="kept")
    upright = 12 < len(layers) <= LABELLED
    axes.set_ylim(0, (1.2 if upright else 1.1) * max((layer.channels for layer in layers), default=1))
    axes.set_xlim(0.4, len(layers) + 0.6)
    axes.set_ylabel("filters")
    axes.set_title(title, pad=24)
    axes.grid(axis="x", visible=False)
    if len(layers) <= NAMED:
        names = [layer.name if len(layer.name) <= 26 else f"…{layer.name[-25:]}" for layer in layers]
        if max(map(len, names), default=0) * len(names) <= 36:
            axes.set_xticks(places, names, fontsize=9)
        else:
            axes.set_xticks(places, names, rotation=55, ha="right", rotation_mode="anchor", fontsize=9)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("layer")
    for place, layer in enumerate(layers, start=1):
        if len(layers) <= LABELLED and layer.channels:
            axes.annotate(
                f"−{round(100 * layer.pruned)} %" if layer.kept < layer.channels else "0 %", (place, layer.channels),
                xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", rotation=90 if upright else 0,
                fontsize=7 if upright else 8.5,
            )  # fmt: skip
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, columnspacing=1.2)
