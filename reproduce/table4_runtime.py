"""Table 4 of the paper: epochs until the structure converges and time to solution, our runs beside the published rows.

    python reproduce/table4_runtime.py OUT --data cifar10:DIR --threads 1
    python reproduce/table4_runtime.py OUT --data cifar10:DIR --recipe resnet20 --epochs 6 --limit-train 10000 --dense
    python reproduce/table4_runtime.py --smoke | --published

The paper removes channels once, when the structure has converged. Here they are removed progressively while it does.
Our gates have converged at the first epoch after which at most 1 % of them differ from the final ones. All times are
of one process after another; compare them only if nothing else ran. ``--dense`` trains the network without gates too.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from common import DATA, MODELS, VARIANTS, options, our_source, parsed, published, recipe, run, show

from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.folder import RunFolder

COLUMNS = {
    "data": "data set",
    "model": "model",
    "method": "method",
    "epochs": "epochs",
    "epochs_to_convergence": "epochs to convergence",
    "seconds_per_epoch": "seconds per epoch before convergence",
    "time_to_solution": "time to solution",
    "of_l0_hc": "of L0-HC",
    "after": "accuracy",
    "macs_left": "MACs left, %",
    "source": "source",
}


def timed(made: Recipe, method: str, folder: RunFolder, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one finished run."""
    lines = [line for line in folder.metrics.read() if line.get("phase") == "search" and "seconds" in line]
    result, settled = summary.get("compact") or summary["dense"], summary.get("settled_epoch")
    before = [line["seconds"] for line in lines if settled is None or line["epoch"] <= settled]
    data = made.data.spec.partition(":")[0]
    return {
        "data": DATA.get(data, data),
        "model": MODELS.get(made.model.spec.removesuffix("_dep_l0"), made.model.spec),
        "method": method,
        "epochs": str(made.search.epochs + made.finetune.epochs),
        "epochs_to_convergence": "" if settled is None else f"{settled:g}",
        "seconds_per_epoch": f"{statistics.fmean(before):.1f}" if before else "",
        "seconds": summary["seconds"],
        "time_to_solution": f"{summary['seconds'] / 60:.1f} min",
        "after": f"{result['accuracy']:.2f}",
        "macs_left": f"{100 * summary.get('macs_left', 1.0):.1f}",
        "source": our_source(made),
    }


def pairs(rows: list[dict[str, Any]]) -> None:
    """Add each run's time as a fraction of L0-HC's with the same seed."""
    reference = {row["source"]: row["seconds"] for row in rows if row["method"] == "L0-HC"}
    for row in rows:
        if row["source"] in reference:
            row["of_l0_hc"] = f"{row['seconds'] / reference[row['source']]:.3f}"


def own_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the three methods seed by seed, in alternating order, because the machine may get slower or faster."""
    rows = []
    for place, seed in enumerate(args.seeds):
        order = list(VARIANTS.items())[:: 1 if place % 2 == 0 else -1]
        for suffix, method in order:
            name = f"{args.recipe}-{args.source}{suffix}" if "-" in args.recipe else f"resnet20-cifar10{suffix}"
            fields = {"search__cut": "progressive", "search__dense_baseline": args.dense, "run__channels_last": True}
            if args.limit_train is not None and not args.smoke:
                fields["data__limit_train"] = args.limit_train
            made = recipe(name, args, seed, **fields)
            rows.append(timed(made, method, *run(args, made, name)))
    pairs(rows)
    return rows


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--recipe", default="resnet56-cifar10", help="resnet20: at a budget of half of the MACs")
    parser.add_argument("--limit-train", type=int, help="training images")
    parser.add_argument("--dense", action="store_true", help="train the network without gates first, in the same run")
    args = parsed(parser)
    rows = published("runtime") + ([] if args.published else own_rows(args))
    print(show("Run time of Dep-L0 and L0-HC", COLUMNS, rows, "The paper's times are of Nvidia V100 GPUs."))


if __name__ == "__main__":
    main()
