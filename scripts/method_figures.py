"""Draw the pictures of docs/how-it-works.md: ``python scripts/method_figures.py`` writes them to docs/images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from depl0.app.reports.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, new_figure, style
from depl0.gates.hard_concrete import evaluation_gates, open_probability, sample

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def gates() -> Figure:
    """Draw the meaning of a gate's log α: the distribution of its value, and its open probability."""
    figure = new_figure(7.4, 2.9)
    left, right = figure.subplots(1, 2)
    noise = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    for log_alpha, color in ((-3.0, RED), (0.0, ORANGE), (3.0, GREEN)):
        drawn = sample(torch.full_like(noise, log_alpha), noise)
        counts, edges = np.histogram(drawn.numpy(), bins=np.linspace(0, 1, 26))
        left.plot((edges[:-1] + edges[1:]) / 2, counts / len(drawn), color=color, label=f"log α = {log_alpha:+.0f}")
    left.set(title="One gate, sampled many times", xlabel="gate", ylabel="fraction of samples")
    left.set_xticks([0, 0.5, 1], ["0 (closed)", "0.5", "1 (open)"])
    left.legend()
    scale = torch.linspace(-6, 6, 200)
    right.plot(scale, open_probability(scale), color=BLUE, label="open probability")
    right.plot(scale, evaluation_gates(scale, "median"), color=PURPLE, label="gate outside training")
    right.set(title="log α decides how often it is open", xlabel="log α")
    right.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    right.legend()
    return figure


def threshold() -> Figure:
    """Draw the budget as a threshold that rises over the scores of all gates."""
    rng = np.random.default_rng(3)
    scores, costs = np.sort(rng.normal(size=24))[rng.permutation(24)], np.ones(24)
    figure = new_figure(7.4, 2.6)
    for cell, (when, target) in zip(
        figure.subplots(1, 3, sharey=True),
        (("start", 1.0), ("half way", 0.75), ("at the budget", 0.5)),
        strict=True,
    ):
        order = np.argsort(-scores)
        open_gates = np.zeros(24, dtype=bool)
        open_gates[order[np.cumsum(costs[order]) <= target * costs.sum() + 1e-9]] = True
        cell.bar(range(24), scores - scores.min() + 0.3, color=[GREEN if is_open else GREY for is_open in open_gates])
        if not open_gates.all():
            line = (scores[open_gates].min() + scores[~open_gates].max()) / 2 - scores.min() + 0.3
            cell.axhline(line, color=RED, linestyle="--", linewidth=1.5)
            cell.text(-0.4, 4.35, "- - threshold", color=RED, va="top")
        left = costs[open_gates].sum() / costs.sum()
        cell.set(title=f"{when} ({target:.0%})", xlabel=f"gates; open: {left:.0%} of the cost")
        cell.set_xticks([])
        cell.set_yticks([])
        cell.grid(visible=False)
    figure.axes[0].set_ylabel("score")
    return figure


def cutting() -> Figure:
    """Draw the parts that a closed gate removes: a filter, its norm, and a slice of the next layer."""
    figure = new_figure(7.4, 2.3)
    axes = figure.subplots()
    closed = (1, 4)
    _layer(axes, 0.2, "conv1: filters", 6, 3, rows=closed, columns=())
    _layer(axes, 2.6, "norm", 6, 1, rows=closed, columns=())
    _layer(axes, 3.8, "conv2: filters × inputs", 4, 6, rows=(), columns=closed)
    axes.add_patch(FancyArrowPatch((7.2, 1.3), (8.0, 1.3), arrowstyle="-|>", mutation_scale=22, color=INK))
    _layer(axes, 8.3, "conv1", 4, 3, rows=(), columns=())
    _layer(axes, 10.4, "norm", 4, 1, rows=(), columns=())
    _layer(axes, 11.6, "conv2", 4, 4, rows=(), columns=())
    axes.text(3.5, -0.55, "two closed gates (red)", ha="center", color=RED)
    axes.text(10.9, -0.55, "the same function in smaller layers", ha="center", color=GREEN)
    axes.set(xlim=(0, 14), ylim=(-0.8, 3.4), aspect="equal")
    axes.axis("off")
    return figure


def _layer(
    axes: Axes, x: float, name: str, height: int, width: int, rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    step = 0.45
    for row in range(height):
        for column in range(width):
            gone = row in rows or column in columns
            axes.add_patch(
                Rectangle(
                    (x + column * step, 2.6 - (row + 1) * step), step * 0.9, step * 0.9,
                    facecolor=RED if gone else GREEN, alpha=0.35 if gone else 1.0, hatch="///" if gone else None,
                    edgecolor=INK, linewidth=0.5,
                )
            )  # fmt: skip
    axes.text(x, 2.8, name, ha="left", fontsize=8.5)


def certificate() -> Figure:
    """Draw the verification of a compact network before it is returned."""
    figure = new_figure(7.4, 2.0)
    axes = figure.subplots()
    boxes = {
        "inputs": (0.3, 1.0, "random inputs,\nbatch sizes,\nboth modes", GREY),
        "gated": (3.3, 1.9, "gated model\nclosed gates = 0", ORANGE),
        "compact": (3.3, 0.1, "pruned model\nchannels removed", GREEN),
        "compare": (6.6, 1.0, "outputs equal\nin float64?", BLUE),
        "yes": (9.9, 1.9, "yes:\nreturned", GREEN),
        "no": (9.9, 0.1, "no:\nCertificateError", RED),
    }
    for x, y, text, color in boxes.values():
        axes.add_patch(
            FancyBboxPatch((x, y), 2.3, 0.9, boxstyle="round,pad=0.08", facecolor=color, alpha=0.25, edgecolor=color)
        )
        axes.text(x + 1.15, y + 0.45, text, ha="center", va="center", fontsize=8.5)
    for start, end in (("inputs", "gated"), ("inputs", "compact"), ("gated", "compare"), ("compact", "compare"),
                       ("compare", "yes"), ("compare", "no")):  # fmt: skip
        (x0, y0, *_), (x1, y1, *_) = boxes[start], boxes[end]
        axes.add_patch(
            FancyArrowPatch(
                (x0 + 2.4, y0 + 0.45), (x1 - 0.1, y1 + 0.45), arrowstyle="-|>", mutation_scale=14, color=INK
            )
        )
    axes.set(xlim=(0, 12.6), ylim=(-0.2, 3.1))
    axes.axis("off")
    return figure


FIGURES = {"gates": gates, "threshold": threshold, "cutting": cutting, "certificate": certificate}


def main(folder: Path = IMAGES) -> None:
    """Write every picture as SVG on white, so that it reads on light and dark pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        with style():
            draw().savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
