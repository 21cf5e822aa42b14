"""Code shared by the scripts of this folder: options, resumable runs, published rows, and the table of both."""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import make_reporter
from depl0.app.table import markdown_grid
from depl0.app.training.prune import prune

PUBLISHED = Path(__file__).with_name("published")
VARIANTS = {"": "Dep-L0 (forward)", "-backward": "Dep-L0 (backward)", "-l0-hc": "L0-HC"}
"""suffix of a recipe's name -> the paper's name of the method"""
MODELS = {"vgg16": "VGG16", "resnet50": "ResNet-50", "resnet56": "ResNet-56"}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
WORDS = ("table", "data", "model", "method", "generator", "source", "note")

# -- options and runs --------------------------------------------------------------------------------------------------


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser with the options of every script."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="folder of the runs; finished ones are not repeated")
    parser.add_argument("--data", help="data set and its folder, for example cifar10:data/cifar10")
    parser.add_argument("--source", choices=("paper", "authors"), default="paper", help="which of the two sources")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, help="epochs of the search, in place of the published number")
    parser.add_argument("--threads", type=int, help="threads of PyTorch")
    parser.add_argument("--published", action="store_true", help="print the published rows and run nothing")
    parser.add_argument("--smoke", action="store_true", help="one epoch of a tiny network, to see that all parts work")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options; a smoke test without a folder writes to a temporary one."""
    args = parser.parse_args()
    if args.threads is not None or args.smoke:
        torch.set_num_threads(args.threads or 1)
    if args.out is None:
        if not (args.smoke or args.published):
            parser.error("name the folder of the runs, or pass --smoke or --published.")
        args.out = Path(tempfile.mkdtemp(prefix="reproduce-"))
    return args


def recipe(name: str, args: argparse.Namespace, seed: int = 0, **fields: Any) -> Recipe:
    """Return a recipe of the catalogue with the script's options; with ``--smoke``, its gates on a tiny network."""
    found = catalog.get(name)
    changes: dict[str, Any] = {"run.seed": seed, **{key.replace("__", "."): value for key, value in fields.items()}}
    if args.smoke:
        gates = {f"gates.{key}": getattr(found.gates, key) for key in ("method", "generator", "direction", "preset")}
        limits = {"data.limit_train": 64, "data.limit_test": 32, "data.batch_size": 32, "search.epochs": 1}
        penalty = {"gates.budget": found.gates.budget, "penalty.weight": found.penalty.weight}
        changes = {**gates, **penalty, **limits, "finetune.epochs": 0, "run.trackers": (), **changes}
        found = catalog.get("digits")
        changes = {key: value for key, value in changes.items() if key != "data.spec"}
    else:
        changes |= {} if args.data is None else {"data.spec": args.data}
        changes |= {} if args.epochs is None else {"search.epochs": args.epochs}
    return with_overrides(found, {"name": name, **changes})


def run(args: argparse.Namespace, made: Recipe, *folder: str) -> tuple[RunFolder, dict[str, Any]]:
    """Run a recipe below the script's folder, or resume it, and return its folder and summary."""
    path = args.out.joinpath(*folder, f"seed-{made.run.seed}")
    return prune(made, str(path), resume=RunFolder(path).has_begun, reporter=make_reporter(args.smoke))


# -- tables ------------------------------------------------------------------------------------------------------------


def published(table: str) -> list[dict[str, str]]:
    """Return the rows of a table of the paper (and of later methods), with numbers as printed in their source."""
    name = table if table in ("runtime", "ablation") else "results"
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("table", table) == table]
    for row in rows:
        if row.get("flops_left"):
            row["flops_cut"] = f"{100 - float(row['flops_left']):.1f}"
        elif row.get("flops_ratio"):
            row["flops_cut"] = f"{100 * (1 - 1 / float(row['flops_ratio'])):.1f}"
        if row.get("before") and not row.get("change"):
            row["change"] = f"{float(row['after']) - float(row['before']):+.2f}"
    return rows


def own_row(name: str, made: Recipe, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of one of our runs, in the columns of the paper's tables."""
    dense, compact = summary["dense"], summary["compact"]
    base = name.removesuffix("-backward").removesuffix("-l0-hc")
    model, data = base.split("-")[:2]
    suffix = name.removeprefix("-".join(base.split("-")[:2])).removeprefix("-paper").removeprefix("-authors")
    before = dense.get("accuracy")
    return {
        "data": DATA.get(data, data),
        "model": MODELS.get(model, model),
        "method": VARIANTS.get(suffix, suffix),
        "generator": made.gates.generator,
        "before": "" if before is None else f"{before:.2f}",
        "after": f"{compact['accuracy']:.2f}",
        "change": "" if before is None else f"{compact['accuracy'] - before:+.2f}",
        "flops": short(compact["macs"]),
        "flops_cut": f"{100 * (1 - compact['macs'] / dense['macs']):.1f}",
        "params": short(compact["params"]),
        "params_cut": f"{100 * (1 - compact['params'] / dense['params']):.1f}",
        "source": our_source(made),
    }


def our_source(made: Recipe) -> str:
    """Return the source of one of our rows. For a smoke test, it states that the figures are meaningless."""
    smoke = ", smoke test on digits" if made.model.spec == "small_cnn" else ""
    return f"ours, {made.search.epochs} epochs, seed {made.run.seed}{smoke}"


def short(count: float) -> str:
    """Format a count as in the paper.

    >>> short(135_600_000), short(2_100_000_000)
    ('135.6M', '2.10B')
    """
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count:,.0f}"


def show(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, str]], *notes: str) -> str:
    """Return a table with notes below it; ``columns`` are titles by key, and empty ones are left out."""
    rows = list(rows)
    used = {key: name for key, name in columns.items() if any(row.get(key) for row in rows)}
    cells = [[row.get(key) or "–" for key in used] for row in rows]
    table = markdown_grid(list(used.values()), cells, is_number=[key not in WORDS for key in used])
    noted = [row for row in rows if row.get("note")]
    remarks = [f"{row['model']}, {row.get('method') or row.get('generator')}: {row['note']}." for row in noted]
    return "\n\n".join([f"# {title}", table, *notes, *remarks]) + "\n"


RESULT = {
    "data": "data set",
    "model": "model",
    "method": "method",
    "before": "accuracy before",
    "after": "after",
    "change": "change",
    "flops": "MACs",
    "flops_cut": "MACs pruned, %",
    "params": "parameters",
    "params_cut": "parameters pruned, %",
    "source": "source",
}
DIFFER = "The paper prints MACs as FLOPs. Set-ups differ from source to source."


def table_of_methods(doc: str | None, title: str, table: str, networks: Sequence[str]) -> None:
    """Run the paper's two methods (L0-HC and both directions of Dep-L0) on networks, and print table 1, 2 or 3."""
    args = parsed(options(doc))
    rows = published(table)
    for network in [] if args.published else networks:
        for suffix in VARIANTS:
            name = f"{network}-{args.source}{suffix}"
            for seed in args.seeds:
                made = recipe(name, args, seed, search__dense_baseline=True)
                rows.append(own_row(name, made, run(args, made, name)[1]))
    print(show(title, RESULT, rows, DIFFER))
