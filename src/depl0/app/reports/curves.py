"""Training curves: loss, metric and learning rates over search and fine-tuning; cost and gates over the search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from depl0.app.reports.canvas import BLUE, GREEN, GREY, GRID, INK, ORANGE, PURPLE, SKY, Drawing
from depl0.app.reports.run import Run, dig

WIDTH, HEIGHT = 4.6, 3.2
_LOG_FROM = 30
"""ratio of largest to smallest value from which a quantity is drawn on a logarithmic axis"""


def offset(run: Run, phase: str) -> float:
    """Return the epochs before a phase. Fine-tuning continues the axis of the search."""
    if phase != "finetune":
        return 0.0
    return float(max((line["epoch"] for line in run.epochs if line.get("phase") == "search"), default=0))


def series(run: Run, *keys: str) -> tuple[list[float], list[float]]:
    """Return epochs and values under these keys of ``metrics.jsonl`` for search and fine-tuning."""
    xs, ys = [], []
    for line in run.epochs:
        value = dig(line, *keys)
        if line.get("phase") in ("search", "finetune") and isinstance(value, (int, float)) and math.isfinite(value):
            xs.append(offset(run, line["phase"]) + line["epoch"])
            ys.append(float(value))
    return xs, ys


def _line(axes: Axes, run: Run, label: str, color: str, *keys: str, after: float = 0.0, **how: Any) -> None:
    pairs = [(x, y) for x, y in zip(*series(run, *keys), strict=True) if x > after]
    if pairs:
        axes.plot(*zip(*pairs, strict=True), label=label, color=color, marker="o" if len(pairs) == 1 else None, **how)


def _in_percent(axes: Axes, factor: float, top: float = math.inf) -> None:
    """Label the axis in percent; ticks above ``top`` have no label, because there is no accuracy of 101 %."""
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{round(factor * value, 6):g} %" if value <= top + 1e-9 else "")
    )


def _log_where_it_helps(axes: Axes) -> None:
    values = [float(y) for line in axes.lines for y in np.asarray(line.get_ydata())]
    if values and min(values) > 0 and max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


# -- panels ------------------------------------------------------------------------------------------------------------


def loss(axes: Axes, run: Run) -> str:
    """Draw the task's loss, and the minimised loss if it is different."""
    if series(run, "loss") != series(run, "task_loss"):
        more = {"penalty": dig(run.recipe, "penalty", "weight"), "distillation": dig(run.recipe, "distill", "weight")}
        names = " and ".join(name for name, weight in more.items() if weight) or "distillation"
        _line(axes, run, f"with {names} (minimised)", ORANGE, "loss")
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
        shown = [] if dense is None else [dense]
        for line in axes.lines:
            values = [float(y) for y in np.asarray(line.get_ydata())]
            later = values[len(values) // 8 :]
            spread = max(later) - min(later)
            near = min(later) - spread, max(later) + spread
            shown += [value for value in values if near[0] <= value <= near[1]]
        room = 0.06 * (max(shown) - min(shown)) or 0.02 * abs(max(shown)) or 1.0
        axes.set_ylim(min(shown) - room, max(shown) + room)
        if dense is not None:
            axes.axhline(dense, color=GREY, linestyle="--", linewidth=1.2, label=f"dense {judged.show(dense)}")
        if judged.unit == "%":
            _in_percent(axes, 1, top=100)
    return judged.title if judged.higher_is_better else f"{judged.title} ({judged.direction})"


def cost(axes: Axes, run: Run) -> str:
    """Draw expected and kept cost against the budget, and the events of the search."""
    of = "params" if dig(run.recipe, "gates", "of") == "params" else "macs"
    _line(axes, run, "expected", ORANGE, "expected", f"{of}_share")
    _line(axes, run, "kept", GREEN, "kept", f"{of}_share")
    if axes.lines:
        budget = dig(run.recipe, "gates", "budget")
        if budget is not None:
            axes.axhline(budget, color=INK, linestyle=":", linewidth=1.2, label=f"budget {budget:.0%}")
        _mark_events(axes, run)
        axes.set_ylim(0, 1.05)
        _in_percent(axes, 100)
    return "Parameters left" if of == "params" else "MACs left"


def _mark_events(axes: Axes, run: Run) -> None:
    """Mark convergence and freezing by lines, and cuts, of which there may be many, by ticks at the bottom."""
    epochs: dict[str, list[float]] = {}
    for line in run.events:
        if isinstance(line.get("epoch"), (int, float)):
            epochs.setdefault(line["event"], []).append(offset(run, line.get("phase", "search")) + line["epoch"])
    if cuts := epochs.get("compaction"):
        axes.plot(cuts, [0.025] * len(cuts), "|", color=SKY, markersize=9, markeredgewidth=1.8, label="channels cut")
    for event, label, color, dashes in (("convergence", "converged", PURPLE, "-."), ("freezing", "frozen", INK, "--")):
        for epoch in epochs.get(event, [])[:1]:
            axes.axvline(epoch, color=color, linestyle=dashes, linewidth=1.2, label=label, clip_on=False)


def threshold(axes: Axes, run: Run) -> str:
    """Draw the threshold of the gates' scores for the budget, except during the warm-up, when it is not used."""
    if dig(run.recipe, "gates", "budget") is not None:
        warmup, epochs = dig(run.recipe, "search", "warmup"), dig(run.recipe, "search", "epochs")
        _line(axes, run, "threshold", PURPLE, "threshold", after=float(warmup or 0) * float(epochs or 0))
    return "Threshold of the scores"


def undecided(axes: Axes, run: Run) -> str:
    """Draw the fraction of gates whose open probability is between 10 and 90 %."""
    _line(axes, run, "between 10 and 90 % open", BLUE, "undecided")
    axes.set_ylim(bottom=0)
    _in_percent(axes, 100)
    return "Undecided gates"


def rates(axes: Axes, run: Run) -> str:
    """Draw the learning rates of weights and gates."""
    _line(axes, run, "weights", BLUE, "weight_lr")
    _line(axes, run, "gates", ORANGE, "gate_lr")
    _log_where_it_helps(axes)
    return "Learning rate"


Panel = Callable[[Axes, Run], str]
"""draws a panel and returns its title"""
OF_SEARCH: tuple[Panel, ...] = (cost, threshold, undecided)
DETAILS: tuple[Panel, ...] = (threshold, undecided)


def draw(axes: Axes, run: Run, panel: Panel) -> None:
    """Draw one panel with its title and legend; fine-tuning is shaded."""
    title, of_search = panel(axes, run), panel in OF_SEARCH
    axes.set_xlabel("epoch of the search" if of_search else "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    epochs = [offset(run, line["phase"]) + line["epoch"] for line in run.epochs if line.get("phase") != "dense"]
    tuned, last = offset(run, "finetune"), max(epochs, default=1)
    if of_search and tuned:
        last = tuned
    elif 0 < tuned < last:
        axes.axvspan(tuned, last, color=GRID, alpha=0.4, linewidth=0, zorder=0, label="fine-tuning")
    first = min(epochs, default=0)
    axes.set_xlim(first if first < last else first - 1, last)
    handles, labels = axes.get_legend_handles_labels()
    axes.set_title(title, pad=40)  # above two lines of a legend, so that all panels have the same height
    if labels:
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=2 if len(labels) == 4 else 3,
            columnspacing=1.0, handlelength=1.5, labelspacing=0.25,
        )  # fmt: skip


def drawings(run: Run) -> list[Drawing]:
    """Return the panels for which a run has recorded values."""
    made = []
    for panel in (loss, metric, cost, threshold, undecided, rates):
        axes = Figure().subplots()
        title = panel(axes, run)
        if axes.lines:

            def drawn(axes: Axes, panel: Panel = panel) -> None:
                draw(axes, run, panel)

            label = f"{title} of {run.label} by epoch"
            made.append(Drawing(panel.__name__, label, WIDTH, HEIGHT, drawn, panel in DETAILS))
    return made
