"""Compare methods of channel selection with the same recovery. Makes benchmarks/results/comparison/all-methods.

    python benchmarks/short_recovery.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors

Every method scores the channels of the trained network; the same number of MACs is cut and compensated for, and the
pruned network is trained for the same number of steps with the dense network as a teacher
(depl0.search.one_shot.finetune). Each method has the learning rate that is best for it on held-out training images
(--choose: one seed, one budget); test images are used only after that, once per run. It is faster than `depl0 compare`,
which evaluates after every epoch: data, scores and analysis are computed once for all runs of a method. Run it again to
go on: rows that OUT already has are not computed again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from common import mean_spread, network_options, provenance
from one_shot import MEAN, STD, Images, accuracy, calibration, scores_of
from torch import Tensor, nn

import depl0
from depl0._util.io import atomic_write
from depl0.app import models
from depl0.app.data import Data, DataSettings, open_data
from depl0.app.models.weights import load_weights
from depl0.app.table import markdown_grid
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration
from depl0.search.freezing import freeze_network
from depl0.search.one_shot import finetune

METHODS = ("reconstruction", "l1-norm", "fpgm", "taylor", "hrank", "slimming", "sfp", "random")
KEY = ("model", "method", "budget", "lr", "seed", "split")
INTRODUCTION = """\
# All scores, the same recovery

{setting}
Every method cuts the same share of the MACs, is compensated at the cut and trained for {steps} steps of {batch_size}
images with the dense network as a teacher (its answers are 0.9 of the loss, T = 4, and block outputs are compared; a
warm-up of 20 steps, then half a cosine). {chosen}

Test accuracy in per cent, right after the cut and after the last step: mean ± sample standard deviation over n seeds.
`slimming` and `sfp` score the trained network as it is, without the training of their own that their papers have before
the cut.

"""


class Source:
    """Training batches, images to calibrate on, and the images that a run is judged by."""

    def __init__(self, spec: str, split: str, batch_size: int) -> None:
        self._spec, self._batch_size = spec, batch_size
        self._held_out = 0.1 if split == "validation" else 0.0
        plain = self._open("none", 500, 0)
        judged = plain.validation if split == "validation" else plain.test
        assert judged is not None, "a tenth is held out"
        self.rest, self.judged = _all(plain.train.epoch(0)), _all(judged.epoch(0))

    def _open(self, augment: str, batch_size: int, seed: int) -> Data:
        shared: Any = {"mean": MEAN, "std": STD, "validation": self._held_out}
        return open_data(self._spec, DataSettings(batch_size=batch_size, augment=augment, seed=seed, **shared))

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield augmented training batches without end, identical for the same seed."""
        data, epoch = self._open("crop-flip", self._batch_size, seed), 0
        while True:
            yield from data.train.epoch(epoch)
            epoch += 1


def _all(batches: Iterable[tuple[Tensor, Tensor]]) -> Images:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def build(spec: str) -> nn.Module:
    """Build a network by its name, or by ``file.py:make``."""
    file, colon, function = spec.rpartition(":")
    if not colon:
        return models.build(spec)
    found = importlib.util.spec_from_file_location("network_of_ones_own", file)
    assert found is not None and found.loader is not None, f"{file} is no Python file"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    network: nn.Module = getattr(module, function)()
    return network


class Bench:
    """State shared by all runs: data, the dense network, and the rows so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.sources: dict[str, Source] = {}
        self.dense = build(args.model)
        load_weights(self.dense, args.weights)
        self.dense.eval()
        self.file = args.out / "all_methods.json"
        self.rows: list[dict[str, Any]] = json.loads(self.file.read_text())["rows"] if self.file.exists() else []

    def wanted(self, method: str, seed: int, split: str, cells: list[tuple[float, float]]) -> None:
        """Compute the rows of one method, seed and split that are missing; a cell is budget and rate."""
        known = {tuple(row[key] for key in KEY) for row in self.rows}
        missing = [cell for cell in cells if (self.args.model, method, *cell, seed, split) not in known]
        if not missing:
            return
        if split not in self.sources:
            self.sources[split] = Source(self.args.data, split, self.args.batch_size)
        host = build(self.args.model)
        host.load_state_dict(self.dense.state_dict())
        batches = calibration(self.sources[split].rest, seed)
        config: Any = {"generator": "independent", "groups": self.args.groups}
        gated = depl0.attach(host.eval(), batches[0][0][:1], **config)
        scores = scores_of(method, gated, batches)
        for cell in missing:
            host.load_state_dict(self.dense.state_dict())
            gated.free_gates()
            self.rows.append(self._row(gated, scores, batches, (self.args.model, method, *cell, seed, split)))
            self.save()

    def _row(self, gated: GatedModel, scores: Tensor, batches: list[Images], key: tuple[Any, ...]) -> dict[str, Any]:
        start = time.process_time()
        row: dict[str, Any] = dict(zip(KEY, key, strict=True))
        source, inputs = self.sources[row["split"]], [images for images, _ in batches]
        once = Calibration(inputs, inputs, inputs)
        freeze_network(
            gated, gated.config.changed(budget=row["budget"]), scores=scores, calibration=once, compensated=True
        )
        compact = gated.extract().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        row["at_the_cut"] = accuracy(compact, source.judged)
        torch.manual_seed(row["seed"])
        finetune(compact, source.batches(row["seed"]), self.args.steps, row["lr"], loss=None, dense=self.dense)
        row["accuracy"] = accuracy(compact, source.judged)
        row |= {"macs_left": depl0.info(compact).macs_left, "params_left": depl0.info(compact).params_left}
        row |= {"steps": self.args.steps, "batch_size": self.args.batch_size}
        row |= {"cpu_seconds": round(time.process_time() - start, 1)}
        print(f"{row['at_the_cut']:.2f} -> {row['accuracy']:.2f} %", *key, f"{row['cpu_seconds']} s", flush=True)
        return row | provenance()

    def best_rate(self, method: str) -> float:
        """Return the rate that held-out images prefer; the first one where only one was given."""
        args = self.args
        if len(args.choose) == 1:
            return float(args.choose[0])
        self.wanted(method, args.seeds[0], "validation", [(args.choose_at, lr) for lr in args.choose])
        rows = [r for r in self.rows if (r["model"], r["method"], r["split"]) == (args.model, method, "validation")]
        best: float = max(rows, key=lambda row: row["accuracy"])["lr"]
        return best

    def save(self) -> None:
        """Write the rows, and the page."""
        text = json.dumps({"setting": self.args.setting, "rows": self.rows}, indent=1)
        atomic_write(self.file, (text + "\n").encode())
        atomic_write(self.args.out / "README.md", page(self.rows, self.args).encode())


def page(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Return the text of ``README.md``."""
    test = [row for row in rows if row["split"] == "test"]
    budgets = sorted({row["budget"] for row in test}, reverse=True)
    head = ["channels by", "rate", *(f"{b:.0%} of the MACs{when}" for b in budgets for when in (", at the cut", ""))]
    body = []
    for method in dict.fromkeys(row["method"] for row in test):
        own = [row for row in test if row["method"] == method]
        cells = [_cell(own, budget, figure) for budget in budgets for figure in ("at_the_cut", "accuracy")]
        body.append([method, " ".join(f"{lr:g}" for lr in sorted({row["lr"] for row in own})), *cells])
    rates = ", ".join(f"{lr:g}" for lr in args.choose)
    chosen = f"The learning rate is {rates} for all; it was not chosen for this network."
    if len(args.choose) > 1:
        chosen = (
            f"Its learning rate is the best of {rates} on a tenth of\nthe training images, held out "
            f"(one seed, {args.choose_at:.0%} left)."
        )
    words = INTRODUCTION.format(setting=args.setting, steps=args.steps, batch_size=args.batch_size, chosen=chosen)
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    note = (
        "Every run and every trial of a rate: `all_methods.json`. Written by `benchmarks/short_recovery.py`, commit "
        f"{commits}.\n"
    )
    return words + markdown_grid(head, body, is_number=[False] * len(head)) + "\n\n" + note


def _cell(rows: list[dict[str, Any]], budget: float, figure: str) -> str:
    return mean_spread([row[figure] for row in rows if row["budget"] == budget], count=True)


def main() -> None:
    """Choose rates, then run seed by seed, so that an early end leaves every method with about as many."""
    parser = network_options(__doc__, seeds=[0, 1, 2])
    parser.add_argument("--setting", default="The trained ResNet-20 (91.73 %) on CIFAR-10, inner groups.")
    parser.add_argument("--groups", default="inner")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 0.25, 0.15])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--choose", nargs="+", type=float, default=[0.005, 0.01])
    parser.add_argument("--choose-at", type=float, default=0.25)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    rates = {method: bench.best_rate(method) for method in args.methods}
    for seed in args.seeds:
        for method in args.methods:
            bench.wanted(method, seed, "test", [(budget, rates[method]) for budget in args.budgets])


if __name__ == "__main__":
    main()
