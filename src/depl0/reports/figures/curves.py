"""Training curves over search and fine-tuning, with the moments of convergence, compaction and freezing marked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from depl0.reports.figures.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, new_figure
from depl0.reports.run import Run, dig
from depl0.tasks import Metric

WIDTH, HEIGHT = 4.8, 3.2
_EVENTS = {"convergence": (PURPLE, "-."), "compaction": (SKY, ":"), "freezing": (INK, "--")}


@dataclass(frozen=True)
class Event:
    """A moment of a run, in epochs from the beginning of the search."""

    kind: str
    epoch: float


def offset(run: Run, phase: str) -> float:
    """Return the epochs before a phase begins: fine-tuning goes on where the search ended."""
    if phase != "finetune":
        return 0.0
    return float(max((line["epoch"] for line in run.epochs if line.get("phase") == "search"), default=0))


def events(run: Run) -> list[Event]:
    """Return the marked moments; an older run says only in its summary that gates were frozen, after the search."""
    found = [
        Event(line["event"], offset(run, line.get("phase", "search")) + line["epoch"])
        for line in run.events
        if line["event"] in _EVENTS and isinstance(line.get("epoch"), (int, float))
    ]
    kinds = {event.kind for event in found}
    if "convergence" not in kinds and run.get("convergence", "epoch") is not None:
        found.append(Event("convergence", float(run.get("convergence", "epoch"))))
    if "freezing" not in kinds and run.get("freezing") is not None:
        found.append(Event("freezing", offset(run, "finetune")))
    return found


def series(run: Run, *keys: str) -> tuple[list[float], list[float]]:
    """Return epochs and values of what ``metrics.jsonl`` holds under these keys for search and fine-tuning."""
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


def _in_percent(axes: Axes, factor: float) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(factor * value, 6):g} %"))


def loss(axes: Axes, run: Run) -> None:
    """Draw the loss; where a penalty is part of it, the task's loss beside it."""
    if dig(run.recipe, "target", "penalty_weight") is not None:
        _line(axes, run, "with penalty", ORANGE, "loss")
    _line(axes, run, "task loss", BLUE, "task_loss")
    axes.set_ylim(bottom=0)


def metric(axes: Axes, run: Run) -> None:
    """Draw the metric on training images and on validation or test images, and the dense network's on the latter."""
    judged = run.metric
    dense = run.value("dense") if run.split == "test" else run.validation("dense")
    _line(axes, run, "training", SKY, f"train_{judged.name}", linewidth=1.2)
    _line(axes, run, run.split, BLUE, f"{run.split}_{judged.name}")
    if dense is not None:
        axes.axhline(dense, color=GREY, linestyle="--", linewidth=1.2, label=f"dense {judged.show(dense)}")
    if judged.unit == "%":
        _in_percent(axes, 1)
    _, values = series(run, f"{run.split}_{judged.name}")
    if len(values) > 3:  # a first epoch at chance would press all others to one side
        _leave_out_the_worst(axes, judged, sorted(values))


def _leave_out_the_worst(axes: Axes, judged: Metric, values: list[float]) -> None:
    few = len(values) // 8
    if judged.higher_is_better and judged.unit == "%":
        low = values[few]
        axes.set_ylim(bottom=max(0.0, low - 0.6 * (101 - low)), top=100.5)
    elif few and judged.higher_is_better and values[few] < values[-1]:
        axes.set_ylim(bottom=values[few] - 0.6 * (values[-1] - values[few]))
    elif few and not judged.higher_is_better and values[0] < values[-1 - few]:
        axes.set_ylim(top=values[-1 - few] + 0.6 * (values[-1 - few] - values[0]))


def cost(axes: Axes, run: Run) -> None:
    """Draw expected and kept cost against the budget."""
    of = dig(run.recipe, "target", "of") or "macs"
    _line(axes, run, "expected", ORANGE, "expected", f"{of}_share")
    _line(axes, run, "kept", GREEN, "kept", f"{of}_share")
    budget = dig(run.recipe, "target", "budget")
    if budget is not None:
        axes.axhline(budget, color=INK, linestyle=":", linewidth=1.2, label=f"budget {budget:.0%}")
    axes.set_ylim(0, 1.05)
    _in_percent(axes, 100)


def price(axes: Axes, run: Run) -> None:
    """Draw what closes gates: with a budget the threshold of their scores, else the penalty's weight λ."""
    if not _has_budget(run):
        _line(axes, run, "λ", PURPLE, "lambda")
        return
    xs, ys = series(run, "threshold")
    if not xs:  # older runs wrote its exponential, and called that lambda
        xs, ys = series(run, "lambda")
        ys = [math.log(y) if y > 0 else math.nan for y in ys]
    if xs:
        axes.plot(xs, ys, label="threshold", color=PURPLE, marker="o" if len(xs) == 1 else None)


def _has_budget(run: Run) -> bool:
    return dig(run.recipe, "target", "budget") is not None


def undecided(axes: Axes, run: Run) -> None:
    """Draw the share of gates whose open probability is between 10 and 90 %."""
    _line(axes, run, "undecided gates", BLUE, "undecided")
    axes.set_ylim(bottom=0)
    _in_percent(axes, 100)


@dataclass(frozen=True)
class Panel:
    """One drawing of the training curves."""

    name: str
    title: Callable[[Run], str]
    draw: Callable[[Axes, Run], None]


def _cost_title(run: Run) -> str:
    return "Parameters left" if dig(run.recipe, "target", "of") == "params" else "MACs left"


def _metric_title(run: Run) -> str:
    better = "" if run.metric.higher_is_better else f" ({run.metric.direction})"
    return run.metric.title + better


PANELS = (
    Panel("loss", lambda run: "Loss", loss),
    Panel("metric", _metric_title, metric),
    Panel("cost", _cost_title, cost),
    Panel("lambda", lambda run: "Threshold of the scores" if _has_budget(run) else "λ", price),
    Panel("undecided", lambda run: "Undecided gates", undecided),
)


def draw(axes: Axes, run: Run, panel: Panel) -> None:
    """Draw one panel with its title, moments and legend."""
    panel.draw(axes, run)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    last = max(
        (offset(run, line["phase"]) + line["epoch"] for line in run.epochs if line["phase"] != "dense"), default=1
    )
    axes.set_xlim(0, max(last, 1))
    if not axes.lines:
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center")
    seen: set[str] = set()
    for event in events(run):
        color, dashes = _EVENTS[event.kind]
        label = None if event.kind in seen else event.kind
        seen.add(event.kind)
        axes.axvline(event.epoch, color=color, linestyle=dashes, linewidth=1.2, label=label, clip_on=False)
    handles, labels = axes.get_legend_handles_labels()
    columns = 3 if len(labels) != 4 else 2
    axes.set_title(panel.title(run), pad=10 + 14 * math.ceil(len(labels) / columns))  # above the legend's lines
    axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=columns, columnspacing=1.0,
        handlelength=1.5, labelspacing=0.2,
    )  # fmt: skip


def figure(run: Run) -> Figure:
    """Return all panels of a run in one figure."""
    made = new_figure(3 * WIDTH, 2 * HEIGHT + 0.3)
    cells = made.subplots(2, 3).flat
    for cell, panel in zip(cells, PANELS, strict=False):
        draw(cell, run, panel)
    for cell in list(made.axes)[len(PANELS) :]:
        cell.set_visible(False)
    made.suptitle(run.label, x=0.01, ha="left", fontweight="bold")
    return made
