"""Is it the dependency? The paper's own regime on a CPU, with controls. Rules: docs/results/regime/RULES.md.

    python benchmarks/paper_regime.py OUT --data cifar10:DIR    # runs, or goes on; one member after the other
    python benchmarks/paper_regime.py OUT --choices docs/results/regime
    depl0 paper claims OUT --chosen gate_optimizer.lr --seeds 0,1,2,3,4 --title "The paper's regime, with controls" \\
        --out docs/results/regime

M0 chooses each arm's gate rate on held-out images, a scan finds λ whose costs overlap (both on a seed of their own),
then M1, M2, M1b and M3 run seed by seed, three seeds of each first, so that what is broken off is balanced. Every
member is a run folder of `depl0 prune` below OUT and one line of OUT/results.jsonl; a member that was broken off goes
on from its checkpoint. To go on from published rows, copy docs/results/regime/results.jsonl into OUT first, and judge
claims.json beside OUT.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from depl0._util.io import atomic_write
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
from depl0.app.runs.folder import Lines, RunFolder
from depl0.app.runs.progress import Plain
from depl0.app.table import markdown_grid
from depl0.app.training.prune import prune
from depl0.app.training.setup import model_factory, open_data_for
from depl0.paper.claims.runs import read_claim_run
from depl0.surgery.files import load

SEEDS, CHOICE_SEED = (range(3), range(3, 5)), 100
"""three seeds of every part come first, so that each can be judged early; of the choices"""
RATES = {
    "dep": (3e-4, 1e-3, 3e-3, 1e-2),
    "l0-hc": (1e-2, 3e-2, 1e-1, 3e-1),
    "w0": (3e-3, 1e-2, 3e-2, 1e-1),
}
"""of Adam, for the arms whose rate M0 chooses"""
BEYOND = {"dep": (3e-2, 1e-1), "l0-hc": (1.0,)}
"""rates above those, where the highest was chosen: looked at afterwards, to see that it is not the grid that chose"""
CHOICE_WEIGHT = 1.0
"""λ of M0"""
SCAN_FACTORS = (0.25, 4.0)
"""λ of the scan, as multiples of that of M0"""
SHARES = {"vgg": (0.6, 0.4, 0.25), "resnet": (0.7, 0.45)}
"""of the MACs, that the λ of a part are chosen for"""


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is compared: a generator, and whose rate and λ it has."""

    generator: str
    follows: str
    """the arm whose rate and λ are chosen for this one too"""
    direction: str = "forward"


ARMS = {
    "dep": Arm("fc", "dep"),
    "l0-hc": Arm("independent", "l0-hc"),
    "fc-const": Arm("fc-const", "dep"),
    "l0-hc-start": Arm("independent-fc", "l0-hc"),
    "backward": Arm("fc", "dep", "backward"),
    "w0": Arm("bias", "w0"),
    "fc-frozen": Arm("fc-frozen", "w0"),
    "fc-shuffled": Arm("fc-shuffled", "dep"),
    "fc-relu": Arm("fc-relu", "dep"),
    "fc-tanh": Arm("fc-tanh", "dep"),
    "conv1d": Arm("conv1d", "dep"),
    "lstm": Arm("lstm", "dep"),
}


@dataclasses.dataclass(frozen=True)
class Part:
    """One table of runs."""

    name: str
    network: str
    arms: tuple[str, ...]
    weights: slice
    """which of a network's λ"""


PARTS = (
    Part("M1", "vgg", ("dep", "l0-hc", "fc-const", "l0-hc-start"), slice(None)),
    Part("M2", "resnet", ("dep", "l0-hc", "fc-const"), slice(None)),
    Part("M1b", "vgg", ("backward", "w0", "fc-frozen", "fc-shuffled"), slice(None, None, 2)),
    Part("M3", "vgg", ("fc-relu", "fc-tanh", "conv1d", "lstm"), slice(None, None, 2)),
)


@dataclasses.dataclass(frozen=True)
class Member:
    """One run."""

    network: str
    arm: str
    rate: float
    weight: float
    """λ, on the share of the expected parameters"""
    seed: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.network}-{self.arm}-rate{self.rate:g}-lambda{self.weight:.4g}-seed{self.seed}"

    def recipe(self, data: str) -> Recipe:
        """Return the whole description of the run."""
        vgg, arm = self.network == "vgg", ARMS[self.arm]
        factory = "vgg16_eighth" if vgg else "resnet20_half"
        return Recipe(
            name=self.name,
            model=ModelSection(spec=f"{Path(__file__).with_name('paper_networks.py')}:{factory}"),
            data=DataSection(spec=data, batch_size=128, augment="crop-flip", limit_train=10_000, validation=0.1),
            gates=GatesSection(
                method="l0-hc" if arm.generator == "independent" else "dep-l0",
                generator=arm.generator,
                direction=arm.direction,  # type: ignore[arg-type]
                groups="all" if vgg else "inner",
                preset="reference",
                evaluation="paper",
            ),
            penalty=PenaltySection(weight=self.weight, kind="params", scale="share"),
            search=SearchSection(
                epochs=20 if vgg else 15,
                cut="never",
                renew_statistics=False,
                converged_after=0.15 if vgg else 0.2,
            ),
            weight_optimizer=WeightOptimizerSection(lr=0.05 if vgg else 0.1, weight_decay=5e-4, schedule="cosine"),
            gate_optimizer=GateOptimizerSection(lr=self.rate),
            run=RunSection(
                seed=self.seed,
                trackers=(),
                channels_last="on",
                checkpoint_minutes=1.5,
                keep_checkpoints=1,
                gates_steps=10,
            ),
        )


class Study:
    """Runs members in one folder and remembers their figures."""

    def __init__(self, out: Path, data: str) -> None:
        self._out, self._data, self._lines = out, data, Lines(out / "results.jsonl")
        out.mkdir(parents=True, exist_ok=True)
        self._rows = {row["name"]: row for row in self._lines.read()}

    def row(self, member: Member) -> dict[str, Any]:
        """Return a member's figures; it is run first if that has not been done."""
        if member.name not in self._rows:
            recipe = member.recipe(self._data)
            folder, summary = prune(recipe, str(self._out / member.name), resume=True, reporter=Plain())
            row = {"name": member.name, **dataclasses.asdict(member), **figures(recipe, folder, summary)}
            self._lines.add(row)
            self._rows[member.name] = row
        return self._rows[member.name]

    # -- choices, none of them on test images --------------------------------------------------------------------------

    def rate(self, arm: str) -> float:
        """M0: return the rate with the least held-out loss + λ·(share of the parameters that is kept)."""
        arm = ARMS[arm].follows
        rows = [self.row(Member("vgg", arm, rate, CHOICE_WEIGHT, CHOICE_SEED)) for rate in RATES[arm]]
        best = min(rows, key=lambda row: row["held_out_loss"] + CHOICE_WEIGHT * row["params_left"])
        return float(best["rate"])

    def weights(self, network: str, arm: str) -> list[float]:
        """Return the λ for which a scan expects the wanted shares of the MACs."""
        arm = ARMS[arm].follows
        rate, wanted = self.rate(arm), SHARES[network]
        tried = [CHOICE_WEIGHT * factor for factor in (SCAN_FACTORS[0], 1.0, SCAN_FACTORS[1])]
        costs = {weight: self._cost(network, arm, rate, weight) for weight in tried}
        for _ in range(2):  # twice at most a side: an arm may never get there
            if max(costs.values()) < wanted[0]:
                weight = SCAN_FACTORS[0] * min(costs)
                costs[weight] = self._cost(network, arm, rate, weight)
            if min(costs.values()) > wanted[-1]:
                weight = SCAN_FACTORS[1] * max(costs)
                costs[weight] = self._cost(network, arm, rate, weight)
        return [interpolated_weight(costs, share) for share in wanted]

    def _cost(self, network: str, arm: str, rate: float, weight: float) -> float:
        return float(self.row(Member(network, arm, rate, weight, CHOICE_SEED))["macs_left"])

    # -- the parts -----------------------------------------------------------------------------------------------------

    def members(self, part: Part, seeds: range) -> Iterator[Member]:
        """Yield the members of a part, seed by seed."""
        for seed in seeds:
            for arm in part.arms:
                for weight in self.weights(part.network, arm)[part.weights]:
                    yield Member(part.network, arm, self.rate(arm), weight, seed)


def interpolated_weight(costs: dict[float, float], share: float) -> float:
    """Return the λ at which a falling curve through (log λ, cost) has this cost; outside: its nearest end.

    >>> round(interpolated_weight({0.1: 0.8, 1.0: 0.4}, 0.6), 3)
    0.316
    """
    weights = sorted(costs)
    falling = [min(costs[w] for w in weights[: place + 1]) for place in range(len(weights))]
    for (a, b), (high, low) in zip(pairwise(weights), pairwise(falling), strict=True):
        if low <= share <= high and low < high:
            part = (high - share) / (high - low)
            return float(f"{math.exp((1 - part) * math.log(a) + part * math.log(b)):.3g}")
    return weights[0] if share > falling[0] else weights[-1]


@torch.no_grad()
def figures(recipe: Recipe, folder: RunFolder, summary: dict[str, Any]) -> dict[str, Any]:
    """Return what choices are made by, and the main figures, from a finished run."""
    data = open_data_for(recipe, "cpu")
    network = load(folder.compact, model_factory(recipe, data))
    batches = [(F.cross_entropy(network(x), y, reduction="sum"), len(y)) for x, y in data.for_choices.epoch(0)]
    told = read_claim_run(folder.path, control="gates.generator=bias")
    assert told is not None, "the run is finished"
    return {
        "held_out_loss": float(sum(loss for loss, _ in batches)) / sum(count for _, count in batches),
        "held_out": summary["validation"]["compact"]["accuracy"],
        "test": told.score,
        "macs_left": told.cost,
        "params_left": told.params,
        "settled_step": told.settled_step,
        "seconds": summary["seconds"],
        "made_with": told.made_with,
    }


def run(study: Study, parts: Sequence[Part]) -> None:
    """Run everything that is not there yet."""
    for seeds, part in itertools.product(SEEDS, parts):
        for member in study.members(part, seeds):
            row = study.row(member)
            told = f"test {row['test']:.2f} %, {row['macs_left']:.1%} of the MACs, settled at {row['settled_step']}"
            print(f"== {part.name} {member.name}: {told}", flush=True)
    for arm, rates in BEYOND.items():
        for rate in rates:
            study.row(Member("vgg", arm, rate, CHOICE_WEIGHT, CHOICE_SEED))


def write_choices(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write ``choices.md``, the runs that rates and λ were chosen by, and all rows."""
    cells = [
        [
            *(row["network"], row["arm"], f"{row['rate']:g}", f"{row['weight']:g}", f"{row['held_out']:.1f}"),
            f"{row['held_out_loss'] + row['weight'] * row['params_left']:.3f}",
            *(f"{100 * row['macs_left']:.1f}", f"{100 * row['params_left']:.1f}"),
        ]
        for row in rows
        if row["seed"] == CHOICE_SEED
    ]
    head = ["network", "arm", "gate rate", "λ", "held-out, %", "held-out loss + λ·parameters", "MACs left, %"]
    table = markdown_grid([*head, "parameters left, %"], cells, is_number=[False, False, *[True] * 6])
    text = (
        f"# Choices of rates and λ\n\nSeed {CHOICE_SEED}, held-out images; [RULES.md](RULES.md) says how. Rates of "
        f"{BEYOND['dep'][0]:g} and {BEYOND['dep'][1]:g} (dep) and {BEYOND['l0-hc'][0]:g} (l0-hc) were tried after the "
        f"choice, which fell on the\nhighest rates of the rules, and would not have been chosen.\n\n{table}\n"
    )
    atomic_write(folder / "choices.md", text.encode())
    atomic_write(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def main() -> None:
    """Run, or write the choices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="cifar10:data")
    parser.add_argument("--parts", nargs="+", default=[part.name for part in PARTS], help="which of them to run")
    parser.add_argument("--choices", type=Path, help="write choices.md and results.jsonl to this folder, and stop")
    args = parser.parse_args()
    if args.choices is not None:
        write_choices(Lines(args.out / "results.jsonl").read(), args.choices)
        return
    torch.set_num_threads(1)
    run(Study(args.out, args.data), [part for part in PARTS if part.name in args.parts])


if __name__ == "__main__":
    main()
