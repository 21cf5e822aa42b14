"""How much accuracy remains right after a cut, without a step of training? Makes benchmarks/results/one-shot.

    python benchmarks/one_shot.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors --model resnet20

Every cell chooses channels by one method within a budget of the MACs, from calibration images of the training set, cuts
the network and measures it. Compensated cells refit the consumer layers (search.recovery.compensation); the others have
their batch-norm statistics re-estimated on the same images. Choices are made on the validation split (training images
that no cell is calibrated on); the test images are for the final figures. Run it again to resume: cells that OUT
already has are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, network_options, provenance, read_rows, save_rows
from torch import Tensor, nn

import depl0
from depl0.app.data import DataSettings, open_data
from depl0.app.methods import METHODS, Scored
from depl0.app.models import build
from depl0.app.models.weights import load_weights
from depl0.gated import GatedModel
from depl0.search.reconstruction import reconstruction_scores
from depl0.search.recovery.compensation import compensate
from depl0.search.recovery.statistics import reestimate
from depl0.select.gates import select_gates

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CALIBRATION, VALIDATION = 1024, 5000
INTRODUCTION = """\
# Right after the cut, without training

Accuracy in per cent, mean ± standard deviation over n draws of 1,024 calibration images of the training set. Written by
`benchmarks/one_shot.py` from `one_shot.json`, which has every cell with its seed, commit, MACs and channels kept.

- channels by: `reconstruction` (`depl0.search.reconstruction`), or the scores of a method of `depl0.app.methods`
- recovery: `compensation` fits the layers behind the cut in closed form and keeps the batch norms' statistics;
  `statistics` measures those anew on the calibration images and fits nothing; `compensation+statistics` does both

Settings were chosen on training images ([trials](../trials.md)), before any of `reconstruction` was measured on
test images.

Recovery from unlabelled images after the cut: [figures](recovery.md) (`benchmarks/unlabelled.py`); beyond classifiers:
[a U-Net, a ViT and a language model](other-tasks.md) (`benchmarks/other_tasks.py`).

"""
KEY = ("model", "groups", "budget", "method", "recovery", "seed", "split")
Images = tuple[Tensor, Tensor]


def open_splits(spec: str) -> dict[str, Images]:
    """Return test, validation and the rest of the training images, normalised and not augmented."""
    mean, std = (MEAN, STD) if spec.startswith("cifar") else (None, None)
    data = open_data(spec, DataSettings(batch_size=500, mean=mean, std=std, augment="none"))
    parts = {}
    for name, batches in (("train", data.train.epoch(0)), ("test", data.test.epoch(0))):
        images, labels = zip(*batches, strict=True)
        parts[name] = (torch.cat(images), torch.cat(labels))
    images, labels = parts["train"]
    held_out = min(VALIDATION, len(images) // 5)
    return {
        "test": parts["test"],
        "validation": (images[:held_out], labels[:held_out]),
        "rest": (images[held_out:], labels[held_out:]),
    }


def calibration(rest: Images, seed: int) -> list[Images]:
    """Draw the calibration images of a seed, in batches of 128."""
    chosen = torch.randperm(len(rest[0]), generator=torch.Generator().manual_seed(seed))[:CALIBRATION]
    return list(zip(rest[0][chosen].split(128), rest[1][chosen].split(128), strict=True))


@torch.no_grad()
def accuracy(model: nn.Module, split: Images) -> float:
    """Return the share of images that are classified rightly, in per cent."""
    model.eval()
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(split[0].split(250), split[1].split(250), strict=True)
    )
    return 100.0 * right / len(split[0])


def scores_of(method: str, gated: GatedModel, batches: list[Images]) -> Tensor:
    """Return scores that can be compared in the whole network."""
    if method == "reconstruction":
        return reconstruction_scores(gated, [images for images, _ in batches], "macs").cpu()
    scored = METHODS[method]
    assert isinstance(scored, Scored)
    scores = scored.scores(gated, batches, F.cross_entropy, torch.Generator().manual_seed(0))
    return scored.comparable(gated.plan, scores).cpu()


def cut(gated: GatedModel, is_open: Tensor, recovery: str, batches: list[Images]) -> nn.Module:
    """Return the compact network with these gates open, after recovery without training."""
    if recovery.startswith("compensation"):
        compensate(gated, is_open, [images for images, _ in batches])
    gated.fix_gates(is_open.float())
    compact = gated.extract()
    if recovery.endswith("statistics"):
        reestimate(compact, batches)
    return compact


def run(args: argparse.Namespace, rows: list[dict[str, Any]], file: Path) -> None:
    """Compute the cells that are missing."""
    splits = open_splits(args.data)
    known = {tuple(row[key] for key in KEY) for row in rows}
    for groups, seed, method in itertools.product(args.groups, args.seeds, args.methods):
        cells = [
            cell
            for cell in itertools.product(args.budgets, args.recovery)
            if (args.model, groups, cell[0], method, cell[1], seed, args.split) not in known
        ]
        if not cells:
            continue
        batches = calibration(splits["rest"], seed)
        host = build(args.model)
        load_weights(host, args.weights)
        gated = depl0.attach(host.eval(), batches[0][0][:1], generator="independent", groups=groups)
        state = {name: tensor.clone() for name, tensor in host.state_dict().items()}
        start = time.perf_counter()
        scores = scores_of(method, gated, batches)
        for_scores = time.perf_counter() - start
        for budget, recovery in cells:
            host.load_state_dict(state)
            gated.free_gates()
            gated.start_from(scores)
            start = time.perf_counter()
            is_open = select_gates(gated.snapshot(), gated.config.changed(budget=budget), scores).gates > 0
            compact = cut(gated, is_open, recovery, batches)
            seconds = time.perf_counter() - start
            row = dict(zip(KEY, (args.model, groups, budget, method, recovery, seed, args.split), strict=True))
            row["accuracy"] = accuracy(compact, splits[args.split])
            row["macs_share"] = depl0.cost(compact, batches[0][0][:1]).macs / gated.dense_cost.macs
            row["kept"] = {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups}
            row |= {"images": CALIBRATION, "seconds_scores": round(for_scores, 1), "seconds_cut": round(seconds, 1)}
            rows.append(row | provenance())
            save_rows(file, rows)
            print(f"{row['accuracy']:.2f} %", *[row[key] for key in KEY], flush=True)


def table(rows: list[dict[str, Any]], split: str) -> list[str]:
    """Return the lines of a Markdown table: a line for each way to cut, a column for each budget."""
    rows = [row for row in rows if row["split"] == split]
    lines = []
    for model, groups in sorted({(row["model"], row["groups"]) for row in rows}, reverse=True):
        part = [row for row in rows if (row["model"], row["groups"]) == (model, groups)]
        budgets = sorted({row["budget"] for row in part}, reverse=True)
        lines += [f'### {model}, `groups="{groups}"`', ""]
        lines += ["| channels by | recovery | " + " | ".join(f"{b:.0%} of the MACs" for b in budgets) + " |"]
        lines += ["|---|---|" + "---|" * len(budgets)]
        for method, recovery in sorted({(row["method"], row["recovery"]) for row in part}, key=lambda k: (k[1], k[0])):
            cells = []
            for budget in budgets:
                found = [
                    row["accuracy"]
                    for row in part
                    if (row["method"], row["recovery"], row["budget"]) == (method, recovery, budget)
                ]
                cells.append(mean_spread(found, count=True))
            lines.append(f"| {method} | {recovery} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def main() -> None:
    """Compute, and write the JSON."""
    parser = network_options(__doc__, seeds=[0])
    parser.add_argument("--split", default="validation", choices=["validation", "test"])
    parser.add_argument("--groups", nargs="+", default=["inner"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.75, 0.5, 0.25])
    parser.add_argument("--methods", nargs="+", default=["reconstruction", "l1-norm", "fpgm", "taylor"])
    parser.add_argument("--recovery", nargs="+", default=["compensation", "statistics"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "one_shot.json"
    rows = read_rows(file)
    if args.data:
        run(args, rows, file)
    lines = INTRODUCTION.splitlines()
    for split in ("test", "validation"):
        if any(row["split"] == split for row in rows):
            lines += [f"## {split.capitalize()} images", "", *table(rows, split)]
    (args.out / "README.md").write_text("\n".join(lines))
    assert all(math.isfinite(row["accuracy"]) for row in rows)


if __name__ == "__main__":
    main()
