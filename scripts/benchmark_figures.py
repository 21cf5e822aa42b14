"""Draw the pictures of README.md and docs/benchmarks.md from the committed measurements.

    python scripts/benchmark_figures.py

It writes docs/images/hero-light.svg and hero-dark.svg (accuracy of depl0 and of other libraries at equal cost, and
milliseconds), comparison-light.svg and comparison-dark.svg (accuracy against MACs, each method trained for 400 steps),
and the table of docs/benchmarks.md between "<!-- one-shot -->" and "<!-- end -->".
Only rows whose MACs differ from the budget by at most one point are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depl0.app.reports.canvas import new_figure, style

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "benchmarks.md"
START, END = "<!-- one-shot -->", "<!-- end -->"
METHODS = {"depl0": "depl0", "torch-pruning": "Torch-Pruning", "l1-norm": "L1 norm"}
NETWORKS = {
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet50": "ResNet-50",
    "narrow_vgg": "VGG16 with a quarter of its channels",
}
AFTER_PRUNING, RECOVERED = "0", "auto"
BLOCK_WEIGHT = 80.0
"""rows of the present recovery have this weight of the block outputs; earlier trials have another"""


@dataclass(frozen=True)
class Theme:
    """Colours of one background."""

    ink: str
    grid: str
    ours: str
    other: str
    accent: str


THEMES = {
    "light": Theme(ink="#1f2328", grid="#d5dae0", ours="#00806a", other="#8c959f", accent="#0969da"),
    "dark": Theme(ink="#e6edf3", grid="#3d444d", ours="#2bc4a5", other="#9aa4ae", accent="#58a6ff"),
}


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Apply the reports' style in the colours of a theme, with text as outlines."""
    inked = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color")
    changes: Any = {"grid.color": theme.grid, "svg.fonttype": "path", **dict.fromkeys(inked, theme.ink)}
    with style(), mpl.rc_context(changes):
        yield


# -- accuracy of libraries at equal cost -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One method at one budget: accuracies of all samples of calibration data, in percent."""

    method: str
    after_pruning: list[float]
    recovered: list[float]
    macs: float


@dataclass(frozen=True)
class Comparison:
    """Methods on one network at one budget."""

    network: str
    groups: str
    budget: float
    original: float
    cells: list[Cell]

    def complete(self) -> list[Cell]:
        """Return the methods that were measured right after pruning and after the recovery."""
        return [cell for cell in self.cells if cell.after_pruning and cell.recovered]


def comparisons(path: Path = RESULTS / "one-shot" / "recovery.json") -> list[Comparison]:
    """Return every network and budget that was measured; those with most methods that were also recovered first."""
    rows = [row for row in json.loads(path.read_text()) if abs(row["macs_share"] - row["budget"]) <= 0.01]
    keys = sorted({(row["model"], row["groups"], row["budget"]) for row in rows})
    found = [_comparison(rows, *key) for key in keys]
    return sorted(found, key=lambda c: (-len(c.complete()), c.groups != "default", c.network != "resnet20", c.budget))


def _comparison(rows: list[dict[str, Any]], network: str, groups: str, budget: float) -> Comparison:
    part = [row for row in rows if (row["model"], row["groups"], row["budget"]) == (network, groups, budget)]
    cells = []
    for method in METHODS:
        own = [row for row in part if row["method"] == method]
        after = [row["accuracy"] for row in own if row["recover"] == AFTER_PRUNING]
        recovered = [row["accuracy"] for row in own if row["recover"] == RECOVERED and row["blocks"] == BLOCK_WEIGHT]
        if after or recovered:
            cells.append(Cell(method, after, recovered, mean(row["macs_share"] for row in own)))
    return Comparison(network, groups, budget, part[0]["dense_accuracy"], cells)


def spread(values: list[float]) -> float:
    """Return the sample standard deviation, or 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def draw_accuracy(axes: Axes, comparison: Comparison, theme: Theme) -> None:
    """Draw a line for each method, from its accuracy right after pruning to that after recovery."""
    for place, cell in enumerate(reversed(comparison.complete())):
        color = theme.ours if cell.method == "depl0" else theme.other
        low, high = mean(cell.after_pruning), mean(cell.recovered)
        axes.plot([low, high], [place, place], color=color, linewidth=3, alpha=0.5, solid_capstyle="round")
        axes.plot(low, place, "o", color=color, markersize=9, fillstyle="none", markeredgewidth=2)
        axes.plot(high, place, "o", color=color, markersize=9)
        for value, side, gap in ((low, "right", -2.0), (high, "left", 2.0)):
            axes.text(value + gap, place, f"{value:.1f}", ha=side, va="center", color=color, fontweight="bold")
    names = [METHODS[cell.method] for cell in reversed(comparison.complete())]
    axes.set_yticks(range(len(names)), names)
    axes.axvline(comparison.original, color=theme.ink, linestyle=":", linewidth=1.2)
    axes.text(
        comparison.original - 1, len(names) - 0.45, f"original {comparison.original:.1f}", ha="right", fontsize=8.5
    )
    axes.set(xlim=(-6, 106), ylim=(-0.6, len(names) - 0.1), xticks=range(0, 101, 25))
    network = NETWORKS.get(comparison.network, comparison.network)
    axes.set_title(f"Accuracy of {network} with {comparison.budget:.0%} of its MACs", pad=10)
    axes.set_xlabel("CIFAR-10 accuracy in %:  ○ right after pruning   ● after the same recovery without labels")
    _plain(axes)


# -- milliseconds ------------------------------------------------------------------------------------------------------


def milliseconds(network: str = "resnet50", path: Path = RESULTS / "deployed.json") -> dict[str, float]:
    """Return the milliseconds of the original model, the pruned model and its int8 file in ONNX Runtime."""
    (result,) = [row for row in json.loads(path.read_text())["results"] if row["network"] == network]
    times = {variant["name"]: variant["ms"] for variant in result["variants"]}
    names = {"original": "dense, float", "pruned": "compact, float", "pruned, int8": "compact, int8"}
    return {label: times[name] for label, name in names.items()}


def draw_milliseconds(axes: Axes, times: dict[str, float], theme: Theme) -> None:
    """Draw a bar for each variant, with its speed-up."""
    first = next(iter(times.values()))
    for place, (name, value) in enumerate(reversed(times.items())):
        color = theme.other if name == "original" else theme.ours
        axes.barh(place, value, height=0.55, color=color)
        text = f"{value:.0f} ms" if name == "original" else f"{value:.0f} ms ({first / value:.1f}×)"
        axes.text(value + 0.02 * first, place, text, va="center", color=color, fontweight="bold")
    axes.set_yticks(range(len(times)), list(reversed(times)))
    axes.set(xlim=(0, 1.25 * first), ylim=(-0.6, len(times) - 0.1))
    axes.set_title("Speed of ResNet-50 with 50% of its MACs", pad=10)
    axes.set_xlabel("milliseconds per image, ONNX Runtime, one CPU thread")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def hero(theme: Theme) -> Figure:
    """Draw both panels."""
    figure = new_figure(11, 2.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_accuracy(left, comparisons()[0], theme)
    draw_milliseconds(right, milliseconds(), theme)
    return figure


# -- accuracy against MACs ---------------------------------------------------------------------------------------------


def curves(theme: Theme, path: Path = RESULTS / "comparison" / "comparison.json") -> Figure:
    """Draw a line for each method of a study with several budgets."""
    study = json.loads(path.read_text())
    rows = sorted((row for row in study["methods"] if row.get("accuracy")), key=lambda row: row["macs_left"]["mean"])
    figure = new_figure(7.4, 3.4)
    axes = figure.subplots()
    colors = {"reconstruction": theme.ours, "dep-l0": theme.accent, "l1-norm": theme.other}
    for method, color in colors.items():
        own = [row for row in rows if row["method"] == method]
        axes.errorbar(
            [100 * row["macs_left"]["mean"] for row in own], [row["accuracy"]["mean"] for row in own],
            yerr=[row["accuracy"]["sd"] or 0.0 for row in own], color=color, capsize=3, marker="o", label=method,
        )  # fmt: skip
    original = rows[0]["dense_accuracy"]["mean"]
    axes.axhline(original, color=theme.ink, linestyle=":", linewidth=1.2, label=f"original model, {original:.1f} %")
    axes.set(xlabel="MACs kept in %", ylabel="accuracy in %")
    axes.set_title("ResNet-20 on CIFAR-10, pruned and trained for 400 steps")
    axes.legend(loc="lower right")
    return figure


FIGURES = {"hero": hero, "comparison": curves}


# -- the table of docs/benchmarks.md -----------------------------------------------------------------------------------


def table() -> str:
    """Return the Markdown table of all comparisons."""
    lines = [
        "| network | arguments | MACs kept | method | right after pruning | after recovery | n |",
        "|" + "---|" * 7,
    ]
    for found in sorted(comparisons(), key=lambda c: (c.network, c.groups, -c.budget)):
        network = f"{NETWORKS.get(found.network, found.network)} ({found.original:.2f} %)"
        for cell in found.cells:
            values = (_with_spread(cell.after_pruning), _with_spread(cell.recovered))
            n = max(len(cell.after_pruning), len(cell.recovered))
            row = (network, f"`{found.groups}`", f"{100 * cell.macs:.1f} %", METHODS[cell.method], *values, str(n))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _with_spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.1f} ± {spread(values):.1f} %" if len(values) > 1 else f"{values[0]:.1f} %"


def main(folder: Path = IMAGES) -> None:
    """Write every picture for light and for dark pages, and the table."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(START) + len(START), text.index(END)
    PAGE.write_text(f"{text[:start]}\n{table()}\n{text[end:]}", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        for background, theme in THEMES.items():
            with themed(theme):
                metadata = {"Date": None, "Creator": None}
                draw(theme).savefig(folder / f"{name}-{background}.svg", transparent=True, metadata=metadata)


if __name__ == "__main__":
    main()
