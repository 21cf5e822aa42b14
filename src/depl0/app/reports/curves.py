"""Training curves: loss, metric and learning rates over search and fine-tuning; cost and gates over the search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from depl0.app.reports.canvas import BLUE, GREEN, GREY, GRID, INK, ORANGE, PURPLE, SKY, new_figure
from depl0.app.reports.run import Run, dig
from depl0.app.tasks import Metric

WIDTH, HEIGHT = 4.6, 3.2
_EVENTS = ("convergence", "compaction", "freezing")
_LOG_FROM = 30
"""ratio of largest to smallest value from which a quantity is drawn on a logarithmic axis"""


@dataclass(frozen=True)
class Event:
    """An event of a run, in epochs from the beginning of the search."""

    kind: str
    epoch: float


def offset(run: Run, phase: str) -> float:
    """Return the epochs before a phase. Fine-tuning continues the axis of the search."""
    if phase != "finetune":
        return 0.0
    return float(max((line["epoch"] for line in run.epochs if line.get("phase") == "search"), default=0))


def events(run: Run) -> list[Event]:
    """Return the marked events."""
    return [
        Event(line["event"], offset(run, line.get("phase", "search")) + line["epoch"])
        for line in run.events
        if line["event"] in _EVENTS and isinstance(line.get("epoch"), (int, float))
    ]


def series(run: Run, *keys: str) -> tuple[list[float], list[float]]:
    """Return epochs and values under these keys of ``metrics.jsonl`` for search and fine-tuning."""
    xs, ys = [], []
    for line in run.epochs:
        value = dig(line, *keys)
        if line.get("phase") in ("search", "finetune") and isinstance(value, (int, float)) and math.isfinite(value):
            xs.append(offset(run, line["phase"]) + line["epoch"])
            ys.append(float(value))
    return xs, ys


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
    values = [float(y) for line in axes.lines for y in np.asarray(line.get_ydata())]
    if values and min(values) > 0 and max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)


def loss(axes: Axes, run: Run) -> None:
    """Draw the task's loss, and the minimised loss if it is different."""
    more = {"penalty": dig(run.recipe, "penalty", "weight"), "distillation": dig(run.recipe, "distill", "weight")}
    minimised, of_task = series(run, "loss"), series(run, "task_loss")
    if minimised != of_task:
        names = " and ".join(name for name, weight in more.items() if weight) or "distillation"
        _line(axes, run, f"with {names} (minimised)", ORANGE, "loss")
    _line(axes, run, "of the task, training images", BLUE, "task_loss")
    _log_where_it_helps(axes)


def metric(axes: Axes, run: Run) -> None:
    """Draw the metric on training images and on validation or test images, and the dense network's on the latter."""
    judged, dense = run.metric, run.judged_dense
    _line(axes, run, "training", ORANGE, f"train_{judged.name}", linewidth=1.2)
    _line(axes, run, run.split, BLUE, f"{run.split}_{judged.name}")
    if not axes.lines:
        return
    if dense is not None:
        axes.axhline(dense, color=GREY, linestyle="--", linewidth=1.2, label=f"dense {judged.show(dense)}")
    if judged.unit == "%":
        _in_percent(axes, 1, top=100)
    _show_most(axes, run, judged)


def _show_most(axes: Axes, run: Run, judged: Metric) -> None:
    """Limit the axis to all epochs except a few first ones far from the rest, and annotate the values of these."""
    epochs, tested = series(run, f"{run.split}_{judged.name}")
    sign = 1 if judged.higher_is_better else -1
    hidden = _far_at_first([sign * value for value in tested])
    if hidden:
        _name_the_hidden(axes, epochs[:hidden], tested[:hidden], judged)
    trained = series(run, f"train_{judged.name}")
    shown = tested[hidden:] + [y for x, y in zip(*trained, strict=True) if x not in epochs[:hidden]]
    if (dense := run.judged_dense) is not None:
        shown.append(float(dense))
    room = 0.06 * (max(shown) - min(shown)) or 0.02 * abs(max(shown)) or 1.0
    axes.set_ylim(min(shown) - room, max(shown) + room)


def _far_at_first(values: list[float]) -> int:
    """Return the number of first values, at most an eighth of all, that are far below the rest.

    >>> _far_at_first([71.1, 96.9, 99.7, 99.2, 99.4, 99.4, 99.7, 99.4])
    1
    """
    most = len(values) // 8
    if not most:
        return 0
    rest = values[most:]
    limit = min(rest) - (max(rest) - min(rest))
    return max((place for place in range(1, most + 1) if values[place - 1] < limit), default=0)


def _name_the_hidden(axes: Axes, epochs: list[float], values: list[float], judged: Metric) -> None:
    where, side, arrow = (0.03, "bottom", "↓") if judged.higher_is_better else (0.97, "top", "↑")
    rest = f" to {judged.show(values[-1])} (epoch {epochs[-1]:g})" if len(epochs) > 1 else ""
    text = f"{arrow} {judged.show(values[0])} (epoch {epochs[0]:g}){rest}"
    axes.text(0.04, where, text, transform=axes.transAxes, ha="left", va=side, fontsize=9)


def cost(axes: Axes, run: Run) -> None:
    """Draw expected and kept cost against the budget, and the events of the search."""
    of = dig(run.recipe, "gates", "of") or "macs"
    _line(axes, run, "expected", ORANGE, "expected", f"{of}_share")
    _line(axes, run, "kept", GREEN, "kept", f"{of}_share")
    if not axes.lines:
        return
    budget = dig(run.recipe, "gates", "budget")
    if budget is not None:
        axes.axhline(budget, color=INK, linestyle=":", linewidth=1.2, label=f"budget {budget:.0%}")
    _moments(axes, run)
    axes.set_ylim(0, 1.05)
    _in_percent(axes, 100)


def _moments(axes: Axes, run: Run) -> None:
    """Mark convergence and freezing by lines, and cuts, of which there may be many, by ticks at the bottom."""
    found = events(run)
    cuts = [event.epoch for event in found if event.kind == "compaction"]
    if cuts:
        axes.plot(cuts, [0.025] * len(cuts), "|", color=SKY, markersize=9, markeredgewidth=1.8, label="channels cut")
    for kind, label, color, dashes in (("convergence", "converged", PURPLE, "-."), ("freezing", "frozen", INK, "--")):
        for event in [event for event in found if event.kind == kind][:1]:
            axes.axvline(event.epoch, color=color, linestyle=dashes, linewidth=1.2, label=label, clip_on=False)


def threshold(axes: Axes, run: Run) -> None:
    """Draw the threshold of the gates' scores for the budget, except during the warm-up, when it is not used."""
    if dig(run.recipe, "gates", "budget") is None:
        return
    share, epochs = dig(run.recipe, "search", "warmup"), dig(run.recipe, "search", "epochs")
    warm = float(share or 0) * float(epochs or 0)
    xs, ys = series(run, "threshold")
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x > warm]
    if pairs:
        axes.plot(*zip(*pairs, strict=True), label="threshold", color=PURPLE, marker="o" if len(pairs) == 1 else None)


def undecided(axes: Axes, run: Run) -> None:
    """Draw the fraction of gates whose open probability is between 10 and 90 %."""
    _line(axes, run, "between 10 and 90 % open", BLUE, "undecided")
    axes.set_ylim(bottom=0)
    _in_percent(axes, 100)


def rates(axes: Axes, run: Run) -> None:
    """Draw the learning rates of weights and gates."""
    _line(axes, run, "weights", BLUE, "weight_lr")
    _line(axes, run, "gates", ORANGE, "gate_lr")
    _log_where_it_helps(axes)


@dataclass(frozen=True)
class Panel:
    """One drawing of the training curves."""

    name: str
    title: Callable[[Run], str]
    draw: Callable[[Axes, Run], None]
    search_only: bool = False
    is_detail: bool = False
    """whether the page shows it under "Details" only"""


def _cost_title(run: Run) -> str:
    return "Parameters left" if dig(run.recipe, "gates", "of") == "params" else "MACs left"


def _metric_title(run: Run) -> str:
    better = "" if run.metric.higher_is_better else f" ({run.metric.direction})"
    return run.metric.title + better


PANELS = (
    Panel("loss", lambda run: "Loss", loss),
    Panel("metric", _metric_title, metric),
    Panel("cost", _cost_title, cost, search_only=True),
    Panel("threshold", lambda run: "Threshold of the scores", threshold, search_only=True, is_detail=True),
    Panel("undecided", lambda run: "Undecided gates", undecided, search_only=True, is_detail=True),
    Panel("rates", lambda run: "Learning rate", rates),
)


def panels(run: Run) -> list[Panel]:
    """Return the panels for which a run has recorded values."""
    return [panel for panel in PANELS if _drawn(panel, run)]


def _drawn(panel: Panel, run: Run) -> bool:
    axes = Figure().subplots()
    panel.draw(axes, run)
    return bool(axes.lines)


def draw(axes: Axes, run: Run, panel: Panel) -> None:
    """Draw one panel with its title and legend; fine-tuning is shaded."""
    panel.draw(axes, run)
    axes.set_xlabel("epoch of the search" if panel.search_only else "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    epochs = [offset(run, line["phase"]) + line["epoch"] for line in run.epochs if line.get("phase") != "dense"]
    tuned, last = offset(run, "finetune"), max(epochs, default=1)
    if panel.search_only and tuned:
        last = tuned
    elif 0 < tuned < last:
        axes.axvspan(tuned, last, color=GRID, alpha=0.4, linewidth=0, zorder=0, label="fine-tuning")
    first = min(epochs, default=0)
    axes.set_xlim(first if first < last else first - 1, last)
    handles, labels = axes.get_legend_handles_labels()
    columns = 3 if len(labels) != 4 else 2
    axes.set_title(panel.title(run), pad=40)  # above two lines of a legend, so that all panels have the same height
    if labels:
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=columns, columnspacing=1.0,
            handlelength=1.5, labelspacing=0.25,
        )  # fmt: skip


def figure(run: Run) -> Figure:
    """Return all panels of a run in one figure."""
    shown = panels(run)
    columns = 2 if len(shown) in (2, 4) else min(max(len(shown), 1), 3)
    rows = math.ceil(len(shown) / columns) or 1
    made = new_figure(columns * WIDTH, rows * HEIGHT + 0.3)
    cells = list(made.subplots(rows, columns, squeeze=False).flat)
    for cell, panel in zip(cells, shown, strict=False):
        draw(cell, run, panel)
    for cell in cells[len(shown) :]:
        cell.set_visible(False)
    made.suptitle(run.label, x=0.01, ha="left", fontweight="bold")
    return made
