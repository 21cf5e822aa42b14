"""Compare Dep-L0 with independent gates, each with its own gate rate. Rules: benchmarks/results/verdict/RULES.md.

    python reproduce/claims/run.py OUT --data cifar10:DIR          # run, or resume, one run after another
    python reproduce/claims/run.py OUT --parts choices seeds       # run only these parts
    python reproduce/claims/run.py --smoke                         # one epoch of a tiny network
    python reproduce/claims/verdict.py OUT/results.jsonl benchmarks/results/verdict

Every run is a folder of `depl0 prune` below OUT and one line of OUT/results.jsonl. An interrupted run resumes from its
checkpoint. To continue on another machine, copy benchmarks/results/verdict/results.jsonl into OUT first.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from controls import register_controls

from depl0._util.io import read_json
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import (
    DataSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    PenaltySection,
    RunSection,
    SearchSection,
    WeightOptimizerSection,
)
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.folder import Lines, RunFolder
from depl0.app.runs.progress import Plain, Reporter
from depl0.app.runs.records import SCALE
from depl0.app.training.prune import prune
from depl0.app.training.setup import model_factory, open_data_for
from depl0.gates.hard_concrete import closing_log_alpha, open_probability
from depl0.surgery.files import load

NETWORKS = Path(__file__).parents[2] / "benchmarks" / "paper_networks.py"
CHOICE_SEED, SEEDS, LONG_SEEDS = 100, range(5), range(3)
TARGETS = (0.6, 0.4, 0.25)
"""fractions of the MACs that λ is chosen for"""
MIDDLE = 1
BETWEEN = {0.5: 1, 0.325: 2}
"""fractions of the MACs of further runs, and the target whose gate rate they use"""
TRAIN, UNSEEN = 10_000, 10_000
"""training images of every run, and further training images for choices that are not used in training"""
EPOCHS, LONG_EPOCHS = 20, 60
PUBLISHED_RATE = 0.001
SCANS: dict[str, dict[float, tuple[float, ...]]] = {
    "dep": {0.001: (1.0, 30.0, 400.0), 0.003: (0.5, 20.0, 150.0), 0.01: (0.122, 8.19, 36.9)},
    "l0-hc": {0.03: (2.0, 8.0, 40.0), 0.1: (0.5, 3.0, 12.0), 0.3: (0.114, 0.639, 2.3), 0.001: (12.0,)},
    "w0": {0.1: (1.06, 3.4, 14.0)},
    "fc-const": {},
    "dep-image": {},
    "l0-hc-image": {},
}
"""λ to try for each gate rate; the arms without rates take those of another one (CONTROLS)"""
CONTROLS = {"fc-const": "dep", "dep-image": "dep", "l0-hc-image": "l0-hc"}
"""arm -> the arm whose gate rate it uses"""
FACTORS = {"fc-const": (1 / 64, 1 / 8, 1.0), "dep-image": (1.0, 2.0, 8.0), "l0-hc-image": (1.0, 2.0, 8.0)}
"""λ to try for these, as multiples of the λ of the arm whose rate they have"""
GENERATORS = {"dep": "fc", "l0-hc": "independent", "w0": "bias", "fc-const": "fc-const"}


@dataclasses.dataclass(frozen=True)
class Member:
    """One run."""

    arm: str
    rate: float
    weight: float
    """λ, on the fraction of the expected parameters"""
    seed: int
    epochs: int = EPOCHS

    @property
    def name(self) -> str:
        """Return the folder's name."""
        epochs = "" if self.epochs == EPOCHS else f"-epochs{self.epochs}"
        return f"vgg-{self.arm}-rate{self.rate:g}-lambda{self.weight:.4g}-seed{self.seed}{epochs}"

    def recipe(self, data: str) -> Recipe:
        """Return the recipe of the run, which is that of benchmarks/results/regime but for rate, λ and epochs."""
        base = self.arm.removesuffix("-image")
        generator, per_image = GENERATORS[base], base != self.arm
        return Recipe(
            name=self.name,
            model=ModelSection(spec=f"{NETWORKS}:vgg16_eighth"),
            data=DataSection(spec=data, batch_size=128, augment="crop-flip", limit_train=TRAIN, validation=0.1),
            gates=GatesSection(
                method="l0-hc" if generator == "independent" else "dep-l0",
                generator=generator,
                groups="all",
                preset="reference",
                evaluation="paper",
                **({"draw": "image"} if per_image else {}),
            ),
            penalty=PenaltySection(weight=self.weight, kind="params", scale="share"),
            search=SearchSection(epochs=self.epochs, cut="never", renew_statistics=False),
            weight_optimizer=WeightOptimizerSection(lr=0.05, weight_decay=5e-4, schedule="cosine"),
            gate_optimizer=GateOptimizerSection(lr=self.rate),
            run=RunSection(
                seed=self.seed,
                trackers=(),
                channels_last=True,
                checkpoint_minutes=1.5,
                keep_checkpoints=1,
                gates_steps=10,
            ),
        )


class Experiment:
    """Run members in one folder and keep their figures."""

    def __init__(self, out: Path, data: str | None) -> None:
        """Read the finished runs of a folder; without ``data``, no further one is run."""
        self._out, self._data, self._lines = out, data, Lines(out / "results.jsonl")
        out.mkdir(parents=True, exist_ok=True)
        self._rows = {row["name"]: row for row in self._lines.read()}

    def row(self, member: Member) -> dict[str, Any]:
        """Return the figures of a member; run it first if they are missing."""
        if member.name not in self._rows:
            if self._data is None:
                raise KeyError(member.name)
            recipe = member.recipe(self._data)
            folder, summary = prune(recipe, str(self._out / member.name), resume=True, reporter=Plain())
            row = {"name": member.name, **dataclasses.asdict(member), **figures(recipe, folder, summary, self._data)}
            self._lines.add(row)
            self._rows[member.name] = row
            print(
                f"== {len(self._rows)} {member.name}: test {row['test']:.2f} %, {row['macs_left']:.1%} of the MACs, "
                f"{row['params_left']:.1%} of the parameters, held-out loss {row['held_out_loss']:.3f}, "
                f"{row['seconds']:.0f} s",
                flush=True,
            )
        return self._rows[member.name]

    # -- choices: seed 100, no test image ------------------------------------------------------------------------------

    def curve(self, arm: str, rate: float, place: int) -> list[dict[str, Any]]:
        """Return the runs of one gate rate over λ, extended once on each side if a target is not bracketed."""
        tried = SCANS[arm].get(rate, ())
        if arm in FACTORS:
            _, weight = self.choice(CONTROLS[arm], place)
            tried = tuple(float(f"{factor * weight:.3g}") for factor in FACTORS[arm])
        rows = [self.row(Member(arm, rate, weight, CHOICE_SEED)) for weight in tried]
        if len(tried) > 1:
            costs = [row["macs_left"] for row in rows]
            beyond = [max(tried) * 5] * (min(costs) > TARGETS[-1]) + [min(tried) / 8] * (max(costs) < TARGETS[0])
            rows += [self.row(Member(arm, rate, float(f"{weight:.3g}"), CHOICE_SEED)) for weight in beyond]
        return rows

    def choice(self, arm: str, place: int) -> tuple[float, float]:
        """Return rate and λ for a target: of the rates that reach it, the one with the least held-out loss there."""
        rates = [self.choice(CONTROLS[arm], place)[0]] if arm in CONTROLS else list(SCANS[arm])
        target, found = TARGETS[place], []
        for rate in rates:
            rows = self.curve(arm, rate, place)
            costs = [row["macs_left"] for row in rows]
            reached = min(costs) <= target <= max(costs)
            nearest = min(abs(cost - target) for cost in costs)
            loss = at_cost(rows, "held_out_loss", target) if reached else math.inf
            found.append((not reached, loss, 0.0 if reached else nearest, rate, weight_at(rows, target)))
        *_, rate, weight = min(found)
        return rate, weight

    # -- parts ---------------------------------------------------------------------------------------------------------

    def choices(self) -> Iterator[Member]:
        """Choose rate and λ for both arms and every target."""
        for arm, place in itertools.product(("dep", "l0-hc"), range(len(TARGETS))):
            rate, weight = self.choice(arm, place)
            print(f"== chosen for {arm} at {TARGETS[place]:.0%} of the MACs: rate {rate:g}, λ {weight:g}", flush=True)
        yield from ()

    def seeds(self) -> Iterator[Member]:
        """Yield the 20-epoch runs, seed by seed, interleaved over targets and arms."""
        for seed, place, arm in itertools.product(SEEDS, range(len(TARGETS)), ("dep", "l0-hc")):
            yield Member(arm, *self.choice(arm, place), seed)

    def published(self) -> Iterator[Member]:
        """Yield Dep-L0 with the published gate rate, for the targets at which another one was chosen."""
        for seed, place in itertools.product(SEEDS, range(len(TARGETS))):
            if self.choice("dep", place)[0] != PUBLISHED_RATE:
                weight = weight_at(self.curve("dep", PUBLISHED_RATE, place), TARGETS[place])
                yield Member("dep", PUBLISHED_RATE, weight, seed)

    def controls(self) -> Iterator[Member]:
        """Yield the controls at the middle target."""
        for seed, arm in itertools.product(SEEDS, ("fc-const", "w0")):
            yield Member(arm, *self.choice(arm, MIDDLE), seed)

    def image(self) -> Iterator[Member]:
        """Yield the runs with gates sampled for each image, at the middle target."""
        for seed, arm in itertools.product(LONG_SEEDS, ("dep-image", "l0-hc-image")):
            yield Member(arm, *self.choice(arm, MIDDLE), seed)

    def between(self) -> Iterator[Member]:
        """Yield runs between the targets, so that every seed can be read at the fixed costs."""
        for seed, cost, arm in itertools.product(SEEDS, BETWEEN, ("dep", "l0-hc")):
            yield Member(arm, *self.choice_between(arm, cost), seed)

    def choice_between(self, arm: str, cost: float) -> tuple[float, float]:
        """Return the gate rate chosen for the next target, and the λ that reaches this cost with it."""
        rate, _ = self.choice(arm, BETWEEN[cost])
        return rate, weight_at(self.curve(arm, rate, BETWEEN[cost]), cost)

    def long(self) -> Iterator[Member]:
        """Yield the 60-epoch runs at the rates and λ chosen with 20, and then those between."""
        for places in ((1, 2), (0,)):
            for seed, place, arm in itertools.product(LONG_SEEDS, places, ("dep", "l0-hc")):
                yield Member(arm, *self.choice(arm, place), seed, LONG_EPOCHS)
        for cost, seed, arm in itertools.product(BETWEEN, LONG_SEEDS, ("l0-hc", "dep")):
            yield Member(arm, *self.choice_between(arm, cost), seed, LONG_EPOCHS)


PARTS = ("choices", "seeds", "published", "controls", "image", "between", "long")


def weight_at(rows: Sequence[dict[str, Any]], target: float) -> float:
    """Return the λ at which a falling curve through (log λ, MACs left) has this cost; outside, its nearest end.

    >>> weight_at([{"weight": 0.1, "macs_left": 0.8}, {"weight": 1.0, "macs_left": 0.4}], 0.6)
    0.316
    """
    rows = sorted(rows, key=lambda row: row["weight"])
    falling = list(itertools.accumulate((row["macs_left"] for row in rows), min))
    for (before, high), (after, low) in pairwise(zip(rows, falling, strict=True)):
        if low <= target <= high and low < high:
            part = (high - target) / (high - low)
            return float(f"{before['weight'] ** (1 - part) * after['weight'] ** part:.3g}")
    return float(rows[0 if target > falling[0] else -1]["weight"])


def at_cost(rows: Sequence[dict[str, Any]], name: str, target: float) -> float:
    """Return a figure at a cost that the rows cover, by a straight line between the two nearest rows.

    >>> at_cost([{"macs_left": 0.2, "test": 50.0}, {"macs_left": 0.6, "test": 60.0}], "test", 0.3)
    52.5
    """
    rows = sorted(rows, key=lambda row: row["macs_left"])
    return float(np.interp(target, [row["macs_left"] for row in rows], [row[name] for row in rows]))


def smoke() -> None:
    """Run one epoch of a tiny network for each generator of the experiment, and print its figures."""
    out = Path(tempfile.mkdtemp(prefix="reproduce-"))
    tiny = {"model.spec": "small_cnn", "data.spec": "digits", "data.augment": "none", "data.limit_train": 128}
    for arm in GENERATORS:
        member = Member(arm, PUBLISHED_RATE, 1.0, 0, 1)
        recipe = with_overrides(member.recipe("digits"), {**tiny, "data.batch_size": 64, "run.channels_last": False})
        folder, summary = prune(recipe, str(out / member.name), reporter=Reporter())
        row = figures(recipe, folder, summary, None)
        print(f"{member.name}: {', '.join(f'{key} {value}' for key, value in row.items() if key != 'made_with')}")


def unseen_images(data: str, mean: Sequence[float], std: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return training images that no run sees: those that follow the run's own in depl0's order of the data set."""
    folder = Path(data.partition(":")[2]) / "cifar-10-batches-bin"
    records = np.concatenate([np.fromfile(file, np.uint8) for file in sorted(folder.glob("data_batch_?.bin"))])
    records = records.reshape(-1, 1 + 3 * 32 * 32)
    chosen = np.sort(np.random.default_rng(0).permutation(len(records))[TRAIN : TRAIN + UNSEEN])
    pixels = torch.from_numpy(records[chosen, 1:].reshape(-1, 3, 32, 32)).float() / 255
    pixels = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    return pixels, torch.from_numpy(records[chosen, 0].astype(np.int64))


@torch.no_grad()
def figures(recipe: Recipe, folder: RunFolder, summary: dict[str, Any], unseen: str | None) -> dict[str, Any]:
    """Return every figure that a choice or a verdict uses; ``unseen`` is the data set that choices are made on."""
    data = open_data_for(recipe, "cpu")
    network = load(folder.compact, model_factory(recipe, data)).eval()
    if unseen is None:
        images, targets = next(iter(data.for_choices.epoch(0)))
    else:
        images, targets = unseen_images(unseen, data.info.mean, data.info.std)
    scores = torch.cat([network(batch) for batch in images.split(500)])
    searched = [line for line in folder.metrics.read() if line.get("undecided") is not None]
    groups = {name: (group["gates"], group["open"]) for name, group in summary["groups"].items()}
    ratios = [1 - is_open / gates for gates, is_open in groups.values()]
    gates_log = [line for line in folder.gates.read() if line.get("phase", "search") == "search"]
    settled = [line.get("step") for line in gates_log if line.get("epoch") == summary["settled_epoch"]]
    first = next((line["open"] for line in gates_log if line.get("epoch") == 0 and line.get("open")), {})
    least = SCALE * float(open_probability(torch.tensor(closing_log_alpha("paper"))))
    start = [value <= least for values in first.values() for value in values]
    environment = read_json(folder.path / "environment.json")
    return {
        "test": summary["compact"]["accuracy"],
        "held_out": 100 * float((scores.argmax(1) == targets).float().mean()),
        "held_out_loss": float(F.cross_entropy(scores, targets)),
        "macs_left": summary["macs_left"],
        "params_left": summary["params_left"],
        "gates_open": groups,
        "prune_ratios": [round(ratio, 4) for ratio in ratios],
        "unevenness": statistics.pstdev(ratios),
        "settled_step": settled[0] if settled else None,
        "steps": summary["steps"],
        "undecided": searched[-1]["undecided"] if searched else None,
        "closed_at_start": statistics.fmean(start) if start else None,
        "seconds": summary["seconds"],
        "made_with": {
            "commit": environment.get("commit"),
            **{name: (environment.get("packages") or {}).get(name) for name in ("depl0", "torch")},
        },
    }


def main() -> None:
    """Run every requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--data", default="cifar10:data")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    register_controls()
    if args.smoke:
        return smoke()
    if args.out is None:
        parser.error("name the folder of the runs, or pass --smoke.")
    experiment = Experiment(args.out, args.data)
    for part in args.parts:
        print(f"== part {part}", flush=True)
        for member in getattr(experiment, part)():
            experiment.row(member)


if __name__ == "__main__":
    main()
