"""Does dependency inside a layer improve accuracy? Makes benchmarks/results/in-layer and docs/images/in-layer.png.

    python benchmarks/in_layer.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors --model resnet20
    python benchmarks/in_layer.py OUT        # page and figure alone, from the rows that are there

Every cell cuts a trained network to a fraction of its MACs and refits the consumer layers. Both arms keep the same
number of channels in every layer, those that `depl0.prune` keeps. They differ in which:

- ``on``: reconstruction's order; W and G⁻¹ are brought up to date after every removal
- ``off``: no update; every channel is scored as if it were the first to be removed

A draw is 1,024 training images without labels, an eighth of which is held back for the recovery (``--recover``: steps
of 64 images, all of them taken). Test images are only measured on. Cells that OUT already has are not
computed again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import network_options, provenance, read_rows, save_rows
from in_layer_page import write_page
from one_shot import Images, accuracy, calibration, cut, open_splits
from short_recovery import build
from torch import Tensor, nn

import depl0
from depl0.app.models.weights import load_weights
from depl0.host.inputs import ExampleInputs
from depl0.search.calibration import hold_out
from depl0.search.reconstruction import Look, View, reconstruction_scores
from depl0.search.recovery.self_distillation import distill
from depl0.search.rounds import MIN_SHARE
from depl0.select.gates import select_gates

KEY = ("model", "budget", "recover", "arm", "seed")


def joint_error(views: Sequence[View], gates: Tensor) -> float:
    """Return the error of closing all these gates at once, after a refit of their consumer layers."""
    error = 0.0
    for view in views:
        columns = view.columns(gates)
        if len(columns):
            blocks, weights = view.inverse[columns][:, columns], view.weight[:, columns].T
            error += float((weights * torch.linalg.solve(blocks, weights)).sum())
    return error


class Draw:
    """A trained network, one sample of images, and the results of reconstruction on both."""

    def __init__(self, dense: nn.Module, images: list[Images]) -> None:
        self.dense, self.host = dense, copy.deepcopy(dense)
        self.inputs, self.held_back = hold_out([x.to(memory_format=torch.channels_last) for x, _ in images])
        self.gated = depl0.attach(self.host, self.inputs[0][:1], generator="independent", groups="inner")
        self.scores = reconstruction_scores(self.gated, self.inputs, "macs").cpu()
        look = Look(self.gated, [ExampleInputs.of(batch) for batch in self.inputs])
        self.views = look.views({weight for _, weights in look.parts() for weight in weights})
        self.single: dict[int, float] = {}
        for group in self.gated.plan.groups:
            members = torch.arange(group.offset, group.offset + group.size)
            errors = torch.stack([view.errors(members) for view in self.views if len(view.columns(members))]).sum(0)
            self.single |= dict(zip(members.tolist(), errors.tolist(), strict=True))
        """of every gate, the error if it is the only one that closes"""

    def is_open(self, budget: float, arm: str) -> Tensor:
        """Return the gates that stay open: as many in every group in both arms."""
        self.host.load_state_dict(self.dense.state_dict())
        self.gated.free_gates()
        self.gated.start_from(self.scores)
        config = self.gated.config.changed(budget=budget, min_share=MIN_SHARE)
        chosen = select_gates(self.gated.snapshot(), config, self.scores).gates > 0
        if arm == "off":
            for group in self.gated.plan.groups:
                worth = torch.tensor([self.single[gate] for gate in range(group.offset, group.offset + group.size)])
                kept = worth.argsort(descending=True)[: int(chosen[group.gates].sum())]
                chosen[group.gates] = torch.zeros(group.size, dtype=torch.bool).index_fill(0, kept, True)
        return chosen

    def layers(self, is_open: Tensor) -> dict[str, dict[str, float]]:
        """Return for every group how many gates close, their joint error, and the sum of their single errors."""
        found = {}
        for group in self.gated.plan.groups:
            closed = (~is_open[group.gates]).nonzero().flatten() + group.offset
            if len(closed):
                found[group.name] = {
                    "closed": len(closed),
                    "of": group.size,
                    "joint": joint_error(self.views, closed),
                    "single": sum(self.single[gate] for gate in closed.tolist()),
                }
        return found

    def compact(self, is_open: Tensor, steps: int) -> nn.Module:
        """Return the compact network, refitted and recovered."""
        compact = cut(self.gated, is_open, "compensation", [(batch, batch) for batch in self.inputs])
        compact = compact.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if steps:
            teacher = copy.deepcopy(self.dense)  # it is frozen
            options: Any = {"steps": steps, "patience": None, "augment": True}
            distill(compact, teacher, self.inputs, self.held_back, **options)
        return compact


def run(args: argparse.Namespace, rows: list[dict[str, Any]], file: Path) -> None:
    """Compute the cells that are missing, draw by draw."""
    splits, name = open_splits(args.data), Path(args.model.partition(":")[0]).stem
    dense = build(args.model)
    load_weights(dense, args.weights)
    dense = dense.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    images, labels = splits["test"]
    test = images.to(memory_format=torch.channels_last), labels
    known = {tuple(row[key] for key in KEY) for row in rows}
    whole = next((row["dense_accuracy"] for row in rows if row["model"] == name), None) or accuracy(dense, test)
    for seed in args.seeds:
        cells = [(name, *cell, seed) for cell in itertools.product(args.budgets, args.recover, ("on", "off"))]
        cells = [cell for cell in cells if cell not in known]
        draw = Draw(dense, calibration(splits["rest"], seed)) if cells else None
        for cell in cells:
            assert draw is not None
            start = time.process_time()
            _, budget, steps, arm, _ = cell
            is_open = draw.is_open(budget, arm)
            compact = draw.compact(is_open, steps)
            row = dict(zip(KEY, cell, strict=True)) | {"accuracy": accuracy(compact, test), "dense_accuracy": whole}
            row["macs_share"] = depl0.cost(compact, images[:1]).macs / draw.gated.dense_cost.macs
            row["layers"] = draw.layers(is_open) if not steps else None
            row["shared"] = int((is_open & draw.is_open(budget, "on")).sum()) / int(is_open.sum())
            row["processor_seconds"] = round(time.process_time() - start, 1)
            rows.append(row | provenance())
            save_rows(file, rows)
            print(f"{row['accuracy']:.2f} %", *cell, f"{row['processor_seconds']} s", flush=True)


def main() -> None:
    """Compute, and write page and figure."""
    parser = network_options(__doc__, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 0.25, 0.15])
    parser.add_argument("--recover", nargs="+", type=int, default=[0], help="steps of recovery, 0: at the cut")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "in_layer.json"
    rows = read_rows(file)
    if args.data:
        run(args, rows, file)
    write_page(args.out, rows)


if __name__ == "__main__":
    main()
