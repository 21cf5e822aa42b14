"""Draw layers as the paper's figures 4 and 5 do: bars of filters, and a red curve of the fraction that is pruned.

A bar counts gates, so ResNet-56 has all 28 of them: the gates of its first convolution, which multiply and remove no
filter, and the first convolution of each of its 27 blocks. A layer whose gates are all closed is shown as 100 % pruned,
although the pruned network keeps one channel of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import DATA, MODELS, VARIANTS, options, parsed, recipe, run
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from depl0.app.reports.canvas import RED, new_figure, style
from depl0.app.reports.figures import draw_structure
from depl0.app.reports.run import Layer
from depl0.app.table import markdown_grid


def draw_pruned_curve(axes: Axes, layers: Sequence[Layer]) -> None:
    """Draw the pruned fraction as a curve on a second axis, as in the paper's figure."""
    ratio = axes.twinx()
    shares = [layer.pruned for layer in layers]
    ratio.plot(range(1, len(layers) + 1), shares, color=RED, marker="o", markersize=3.5, linewidth=1.2, clip_on=False)
    ratio.set_ylim(0, 1.05)
    ratio.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    ratio.set_ylabel("pruned")
    ratio.grid(visible=False)
    ratio.spines["right"].set_visible(True)


def layers_of(summary: Mapping[str, Any]) -> list[Layer]:
    """Return a bar for each group of gates, in order of execution."""
    return [Layer(name, group["gates"], group["open"]) for name, group in summary["groups"].items()]


def panel_title(name: str) -> str:
    """Return network, data set and method of a recipe's name.

    >>> panel_title("resnet56-cifar100-paper-l0-hc")
    'ResNet-56, CIFAR-100, L0-HC'
    """
    network, data, _, *suffix = name.split("-", 3)
    method = VARIANTS[f"-{suffix[0]}" if suffix else ""]
    return f"{MODELS.get(network, network)}, {DATA.get(data, data)}, {method}"


def draw(panels: Mapping[str, Sequence[Layer]], file: Path) -> None:
    """Write the figure, one panel for each run."""
    columns = 2
    rows = -(-len(panels) // columns)
    with style():
        figure = new_figure(6.5 * columns, 4.0 * rows)
        for axes, (title, layers) in zip(
            figure.subplots(rows, columns, squeeze=False).flat, panels.items(), strict=False
        ):
            draw_structure(axes, layers, title)
            draw_pruned_curve(axes, layers)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def figure(doc: str | None, name: str, networks: Sequence[str], published: str) -> None:
    """Run Dep-L0 and L0-HC on networks, draw their structures and print the figures from the paper's text."""
    parser: argparse.ArgumentParser = options(doc)
    parser.add_argument("--backward", action="store_true", help="draw Dep-L0 backward in place of forward")
    parser.add_argument("--networks", nargs="+", default=networks, choices=networks)
    args = parsed(parser)
    panels: dict[str, Sequence[Layer]] = {}
    for network in [] if args.published else args.networks:
        for suffix in ("-backward" if args.backward else "", "-l0-hc"):
            recipe_name = f"{network}-{args.source}{suffix}"
            made = recipe(recipe_name, args, args.seeds[0])
            panels[panel_title(recipe_name)] = layers_of(run(args, made, recipe_name)[1])
    print(f"The paper: {published}\n")
    if not panels:
        return
    draw(panels, args.out / f"{name}.svg")
    record = {title: [[layer.name, layer.channels, layer.kept] for layer in layers] for title, layers in panels.items()}
    (args.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    rows = [
        [
            title,
            str(len(layers)),
            str(sum(layer.kept == 0 for layer in layers)),
            str(sum(layer.kept == layer.channels for layer in layers)),
            f"{100 * statistics.fmean(layer.pruned for layer in layers):.1f}",
            f"{100 * statistics.pstdev(layer.pruned for layer in layers):.1f}",
        ]
        for title, layers in panels.items()
    ]
    head = [
        "ours",
        "layers",
        "pruned completely",
        "not pruned",
        "mean pruned, %",
        "standard deviation over layers, points",
    ]
    print(markdown_grid(head, rows))
    print(f"\n{args.out / name}.svg")
