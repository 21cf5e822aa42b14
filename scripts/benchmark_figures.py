"""Draw the README's picture, accuracy against MACs: ``python scripts/comparison_figure.py``.

It reads docs/results/comparison/comparison.json, which ``depl0 compare`` wrote, and writes docs/images/comparison.png
and .svg. With one budget there is one row for each method; with several, one curve.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depl0.app.reports.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, SKY, new_figure, style

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "comparison" / "comparison.json"
IMAGES = ROOT / "docs" / "images"
OURS = ("dep-l0", "reconstruction")
"""the default methods of depl0: with training, and without"""
COLOURS = (GREEN, BLUE, PURPLE, ORANGE, SKY, RED, INK, "#8a8f00", "#7f4a1e", "#5b6770")


@dataclass(frozen=True)
class Point:
    """One method at one budget: means over n seeds."""

    method: str
    macs_left: float
    accuracy: float
    spread: float
    n: int


def read(path: Path = RESULTS) -> tuple[list[Point], float, str]:
    """Return every method's points, the dense network's accuracy, and the title."""
    study = json.loads(path.read_text())
    rows = [row for row in study["methods"] if row.get("accuracy")]
    data = str(study["data"]).partition(":")[0]
    title = f"{study['model']} on {data}, pruned from trained weights"
    points = sorted(map(_point, rows), key=lambda point: (-point.accuracy, point.method))
    return points, rows[0]["dense_accuracy"]["mean"], title


def _point(row: dict[str, Any]) -> Point:
    accuracy = row["accuracy"]
    return Point(row["method"], row["macs_left"]["mean"], accuracy["mean"], accuracy["sd"] or 0.0, row["n"])


def draw(points: list[Point], dense: float, title: str) -> Figure:
    """Return the picture."""
    figure = new_figure(7.4, 3.6)
    axes = figure.subplots()
    if len({round(point.macs_left, 2) for point in points}) > 1:
        _curves(axes, points, dense)
    else:
        _lines(axes, points, dense)
    axes.set_title(title)
    return figure


def _lines(axes: Axes, points: list[Point], dense: float) -> None:
    """Draw one budget: one line per method, the best at the top."""
    for place, point in enumerate(reversed(points)):
        color = GREEN if point.method.partition(":")[0] in OURS else GREY
        axes.errorbar(point.accuracy, place, xerr=point.spread, fmt="o", color=color, capsize=3, markersize=7)
    names = [f"{point.method} (n = {point.n})" for point in reversed(points)]
    axes.set_yticks(range(len(points)), names)
    axes.axvline(dense, color=INK, linestyle="--", linewidth=1, label=f"dense {dense:.2f} %")
    axes.set_xlabel(
        f"accuracy in % with {points[0].macs_left:.0%} of the MACs, mean ± sd; green: learned or fitted here"
    )
    axes.legend(loc="lower right", bbox_to_anchor=(0.93, 0.0))


def _curves(axes: Axes, points: list[Point], dense: float) -> None:
    """Draw several budgets: one curve per method."""
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        own = sorted((point for point in points if point.method == method), key=lambda point: point.macs_left)
        ours = method.partition(":")[0] in OURS
        axes.errorbar(
            [100 * point.macs_left for point in own], [point.accuracy for point in own],
            yerr=[point.spread for point in own], color=COLOURS[place % len(COLOURS)], capsize=3, marker="o",
            linestyle="-" if ours else "--", linewidth=2.2 if ours else 1.2, label=method,
        )  # fmt: skip
    axes.axhline(dense, color=INK, linestyle=":", linewidth=1, label=f"dense {dense:.2f} %")
    axes.set(xlabel="MACs left in %", ylabel="accuracy in %")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def main(folder: Path = IMAGES) -> None:
    """Write the picture as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        figure = draw(*read())
        figure.savefig(folder / "comparison.png", facecolor="white", metadata={"Software": None})
        figure.savefig(folder / "comparison.svg", facecolor="white", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
