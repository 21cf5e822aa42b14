"""Page and figure of benchmarks/in_layer.py."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from common import mean_spread
from intervals import Difference, of_pairs

from depl0.app.reports.canvas import BLUE, GREY, INK, ORANGE, new_figure, style, write
from depl0.app.table import markdown_grid

Row = dict[str, Any]
NAMES = {"resnet20": "ResNet-20", "narrow_vgg": "VGG16 with a quarter of the channels"}
INTRODUCTION = """\
# Dependency inside a layer, on and off

Channels of one layer can stand in for each other: the error of closing several of them is not the sum of the errors of
closing each. Reconstruction removes them one after another and brings W and G⁻¹ up to date after each (`on`). `off`
keeps the same number of channels in every layer and leaves the update out: every channel is judged as the first to go.
Both are refitted in closed form at the cut. Test accuracy in per cent, mean ± sample standard deviation over n draws of
1,024 unlabelled CIFAR-10 training images (128 held back); differences are paired by draw, with Student's 95 % interval.
"""


def write_page(out: Path, rows: list[Row]) -> None:
    """Write ``README.md`` and the figure."""
    lines = [INTRODUCTION]
    models = [model for model in NAMES if any(row["model"] == model for row in rows)]
    for model in models:
        own = [row for row in rows if row["model"] == model]
        lines += [f"## {NAMES[model]} ({own[0]['dense_accuracy']:.2f} %)", "", accuracies(own), "", errors(own), ""]
    lines += [
        "![Points gained by the update, and joint error over the sum of single errors](../../images/in-layer.png)"
    ]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    lines += ["", NOTES, f"Every cell: `in_layer.json`. Written by `benchmarks/in_layer.py`, commit {commits}.", ""]
    (out / "README.md").write_text("\n".join(lines))
    with style():
        draw(rows, models, out)


NOTES = """\
- Channels in common: those that `off` keeps and `on` keeps too.
- Joint over single: the error of all closed channels of a layer together, over the sum of their single errors; the
  geometric mean over layers, in brackets the lowest and the highest layer (each the mean over draws). Above 1, channels
  stand in for each other: the last of them to go is worth more than it looked. Errors are those of the dense network.
"""


def pick(rows: list[Row], budget: float, recover: int, arm: str, figure: str = "accuracy") -> dict[int, float]:
    """Return a figure by draw."""
    key = (budget, recover, arm)
    return {row["seed"]: row[figure] for row in rows if (row["budget"], row["recover"], row["arm"]) == key}


def gain(rows: list[Row], budget: float, recover: int) -> Difference | None:
    """Return on minus off over the draws that have both."""
    on, off = (pick(rows, budget, recover, arm) for arm in ("on", "off"))
    seeds = on.keys() & off.keys()
    return of_pairs([on[seed] - off[seed] for seed in sorted(seeds)]) if seeds else None


def accuracies(rows: list[Row]) -> str:
    """Return the table of accuracies."""
    head = ["MACs left", "steps of recovery", "on", "off", "on − off (95 %)", "channels in common"]
    body = []
    for recover in sorted({row["recover"] for row in rows}):
        for budget in sorted({row["budget"] for row in rows if row["recover"] == recover}, reverse=True):
            arms = [mean_spread(list(pick(rows, budget, recover, arm).values()), count=True) for arm in ("on", "off")]
            shared = statistics.fmean(pick(rows, budget, recover, "off", "shared").values() or [float("nan")])
            body.append([f"{budget:.0%}", str(recover or "at the cut"), *arms, signed(gain(rows, budget, recover))])
            body[-1].append(f"{shared:.0%}")
    return markdown_grid(head, body, is_number=[False] * len(head))


def signed(found: Difference | None) -> str:
    """Return a difference with its interval."""
    if found is None:
        return "–"
    return f"{found.mean:+.2f}" + ("" if found.low is None else f" ({found.low:+.2f} to {found.high:+.2f})")


def ratios(rows: list[Row], budget: float, arm: str) -> dict[str, float]:
    """Return of every layer the joint error over the sum of single errors, mean over draws."""
    cells = [row["layers"] for row in rows if (row["budget"], row["recover"], row["arm"]) == (budget, 0, arm)]
    layers = dict.fromkeys(layer for cell in cells for layer in cell)
    found = {layer: [c[layer]["joint"] / c[layer]["single"] for c in cells if layer in c] for layer in layers}
    return {layer: statistics.fmean(values) for layer, values in found.items()}


def errors(rows: list[Row]) -> str:
    """Return the table of joint against single errors."""
    head = ["MACs left", "joint / single, on", "joint / single, off", "joint error, off / on"]
    body = []
    for budget in sorted({row["budget"] for row in rows}, reverse=True):
        line = [f"{budget:.0%}"]
        for arm in ("on", "off"):
            of_layers = list(ratios(rows, budget, arm).values())
            mean = statistics.geometric_mean(of_layers) if of_layers else float("nan")
            line.append(f"{mean:.2f} ({min(of_layers):.2f} to {max(of_layers):.2f})" if of_layers else "–")
        on, off = (pick([r for r in rows if r["layers"]], budget, 0, arm, "layers") for arm in ("on", "off"))
        pairs = [(on[s][layer]["joint"], off[s][layer]["joint"]) for s in on.keys() & off.keys() for layer in on[s]]
        line.append(f"{statistics.geometric_mean([b / a for a, b in pairs]):.2f}" if pairs else "–")
        body.append(line)
    return markdown_grid(head, body, is_number=[False] * len(head))


def draw(rows: list[Row], models: list[str], out: Path) -> None:
    """Draw the gain by the update, and the ratio of every layer, for each network."""
    figure = new_figure(9.6, 3.2 * max(len(models), 1))
    grid = figure.subplots(max(len(models), 1), 2, squeeze=False)
    for (left, right), model in zip(grid, models, strict=True):
        own = [row for row in rows if row["model"] == model]
        budgets = sorted({row["budget"] for row in own}, reverse=True)
        steps = sorted({row["recover"] for row in own})
        for place, (recover, colour) in enumerate(zip(steps, (BLUE, ORANGE, GREY), strict=False)):
            label: str | None = f"after {recover} steps" if recover else "at the cut"
            for x, budget in enumerate(budgets):
                found = gain(own, budget, recover)
                if found is None:
                    continue
                at = x + 0.16 * (place - (len(steps) - 1) / 2)
                left.plot([at], [found.mean], "o", color=colour, label=label)
                label = None  # one entry of the legend
                if found.low is not None:
                    left.plot([at, at], [found.low, found.high], color=colour)
        left.axhline(0, color=INK, linewidth=0.8)
        left.set_xticks(range(len(budgets)), [f"{budget:.0%}" for budget in budgets])
        left.set_xlabel("MACs left")
        left.set_ylabel("points, on − off")
        left.set_title(f"{NAMES[model].partition(' with')[0]}: what the update gains", fontsize=10)
        left.legend()
        for budget, colour in zip(budgets, (GREY, BLUE, ORANGE), strict=False):
            found_ratios = ratios(own, budget, "on")
            right.plot(
                range(1, len(found_ratios) + 1), list(found_ratios.values()), "o-", color=colour, label=f"{budget:.0%}"
            )
        right.axhline(1, color=INK, linewidth=0.8)
        right.set_xlabel("layer")
        right.set_ylabel("joint / single errors")
        right.set_title("closed channels together, over each alone", fontsize=10)
        right.legend(title="MACs left")
    images = out.parent.parent / "images"
    write(figure, images if images.is_dir() else out, "in-layer")[1].unlink()
