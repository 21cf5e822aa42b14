"""How much accuracy does recovery from unlabelled images restore? Makes benchmarks/results/one-shot/recovery.{json,md}.

    python benchmarks/unlabelled.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors --model resnet20
    python benchmarks/unlabelled.py OUT        # the page alone, from the rows that are there

Every cell prunes with 1,024 training images of a draw, an eighth of which is held back, and is then measured on the
test images; nothing is chosen by them. Cells that OUT already has are not computed again, so that a run can be stopped
and started again. Methods:

- ``depl0``: one call of ``depl0.prune``; ``--recover 0`` is the cut with layers refitted. ``--groups default`` passes
  nothing else, as the README does; other groups are passed on, with ``augment=True``
- ``l1-norm``: the channels with the smallest L1 norm, as many as the same budget allows; nothing is refitted
- ``torch-pruning``: its group magnitude importance, one ratio for all layers that depl0 prunes too, found by bisection
  on the MACs (without that restriction it breaks these networks, whose shortcuts are padded with zeros)

The last two are then recovered by the same images and steps as the first (``pip install torch-pruning==1.6.1``).
"""

from __future__ import annotations

import copy
import itertools
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from common import mean_spread, network_options, provenance, read_rows, save_rows
from one_shot import CALIBRATION, Images, accuracy, calibration, open_splits
from torch import Tensor, nn

import depl0
from depl0.app.methods import METHODS, Scored
from depl0.app.models.spec import factory
from depl0.app.models.weights import load_weights
from depl0.search.calibration import hold_out
from depl0.search.freezing import freeze_network
from depl0.search.recovery.distillation import BLOCKS
from depl0.search.recovery.memory import BATCH_SIZE
from depl0.search.recovery.outputs import compare_by, measure_agreement
from depl0.search.recovery.self_distillation import LR, PATIENCE, STEPS, distill
from depl0.search.recovery.statistics import reestimate
from depl0.surgery.record import Agreement

KEY = ("model", "method", "groups", "budget", "recover", "seed")
STEP = 1 / 64
"""Distance between two ratios of Torch-Pruning: one channel of the widest layers of these networks."""
Steps = int | Literal["auto"]
INTRODUCTION = """\
# Recovery from unlabelled images

Test accuracy in per cent, mean ± sample standard deviation over n draws of 1,024 training images without labels, 128 of
them held back. Written by `benchmarks/unlabelled.py` from `recovery.json`, which has every cell with its seed, commit,
MACs, agreement and times. Steps: the most that are taken, the images in each, and the weight of block outputs beside
the class scores. CPU seconds are of one thread on a machine that other programs used at the same time.

- `depl0`: one call of `depl0.prune`; without steps, the cut with refitted layers. `groups="default"` passes no further
  argument, as the README does; under the other headings the groups are passed, with `augment=True`. Rows of commits
  up to c9fd4c2 were scored and cut once; rounds came later
- `l1-norm`: the channels with the smallest L1 norm; nothing is refitted
- `torch-pruning`: Torch-Pruning 1.6.1, group magnitude importance, one ratio for all layers inside of blocks, searched
  until its MACs are at most 0.7 per cent below the budget, with norms re-estimated on the same images
- recovery is that of `depl0.prune` for all three, with the same images
"""


def main() -> None:
    """Compute the cells that are missing, and write the JSON and the page."""
    parser = network_options(__doc__, seeds=[0])
    parser.add_argument("--groups", default="default")
    parser.add_argument("--methods", nargs="+", default=["depl0"], choices=list(CUTS))
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.25])
    parser.add_argument("--recover", nargs="+", default=["0", "auto"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file: Path = args.out / "recovery.json"
    rows = read_rows(file)
    if args.data:
        known = {tuple(row[key] for key in KEY) for row in rows}
        splits = open_splits(args.data)
        dense = factory(args.model, 10, 3, 32)()
        load_weights(dense, args.weights)
        dense = dense.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        whole = accuracy(dense, splits["test"])
        for seed, recover, method in itertools.product(args.seeds, args.recover, args.methods):
            base = {"model": Path(args.model).stem, "method": method, "groups": args.groups}
            base |= {"recover": recover, "seed": seed}
            missing = [b for b in args.budgets if tuple((base | {"budget": b})[key] for key in KEY) not in known]
            if missing:
                steps: Steps = "auto" if recover == "auto" else int(recover)
                for row in measured(dense, splits, base, missing, steps):
                    rows.append(row | {"dense_accuracy": whole, "threads": args.threads} | provenance())
                    save_rows(file, rows)
                    print(f"{row['accuracy']:.2f} %", *(row[key] for key in KEY), row["macs_share"], flush=True)
    (args.out / "recovery.md").write_text("\n".join([*INTRODUCTION.splitlines(), "", *table(rows)]))


def measured(
    dense: nn.Module, splits: dict[str, Images], base: dict[str, Any], budgets: list[float], steps: Steps
) -> Iterator[dict[str, Any]]:
    """Yield a row for every budget."""
    drawn = calibration(splits["rest"], base["seed"])
    batches = [images.to(memory_format=torch.channels_last) for images, _ in drawn]
    start, used = time.perf_counter(), time.process_time()
    for budget, compact, agreement in CUTS[base["method"]](dense, batches, budgets, base["groups"], steps):
        row = base | {"budget": budget, "budgets": budgets, "most_steps": STEPS if steps == "auto" else steps}
        row |= {"lr": LR, "batch_size": BATCH_SIZE, "blocks": BLOCKS, "patience": PATIENCE, "images": CALIBRATION}
        row["seconds"] = round(time.perf_counter() - start, 1)
        row["processor_seconds"] = round(time.process_time() - used, 1)
        row["accuracy"] = accuracy(compact, splits["test"])
        row["macs_share"] = depl0.cost(compact, batches[0][:1]).macs / depl0.cost(dense, batches[0][:1]).macs
        row["agreement"] = agreement and vars(agreement)
        yield row


# -- methods ---------------------------------------------------------------------------------------------------------


Made: TypeAlias = Iterator[tuple[float, nn.Module, Agreement | None]]
"""Budgets, with their networks and the agreement of each with the original one."""


def with_depl0(dense: nn.Module, batches: list[Tensor], budgets: list[float], groups: str, steps: Steps) -> Made:
    """Prune to all budgets by one call."""
    options: Any = {"recover": steps}
    if groups != "default":
        options |= {"groups": groups, "augment": True}
    networks = depl0.prune(dense, batches[0][:1], data=batches, budget=budgets, **options)
    for budget, compact in zip(budgets, networks, strict=True):
        yield budget, compact, depl0.info(compact).agreement


def with_l1_norm(dense: nn.Module, batches: list[Tensor], budgets: list[float], groups: str, steps: Steps) -> Made:
    """Remove the channels with the smallest L1 norm, the same share of every group."""
    method = METHODS["l1-norm"]
    assert isinstance(method, Scored)
    for budget in budgets:
        options: Any = {"budget": budget, "generator": "independent", "groups": groups}
        gated = depl0.attach(copy.deepcopy(dense), batches[0][:1], **options)
        scores = method.scores(gated, [], F.cross_entropy, torch.Generator())
        freeze_network(gated, scores=method.comparable(gated.plan, scores))
        yield budget, *_recovered(gated.extract(), dense, batches, steps)


def with_torch_pruning(
    dense: nn.Module, batches: list[Tensor], budgets: list[float], groups: str, steps: Steps
) -> Made:
    """Prune with Torch-Pruning to within half a per cent below each budget, with norms re-estimated."""
    for budget in budgets:
        network = cut_with_torch_pruning(dense, batches[0][:1], budget)
        reestimate(network, [(images, None) for images in batches])
        yield budget, *_recovered(network, dense, batches, steps)


def cut_with_torch_pruning(dense: nn.Module, example: Tensor, budget: float) -> nn.Module:
    """Return the network that Torch-Pruning cuts to a budget.

    One ratio for all layers gives coarse steps in narrow networks. So of two neighbouring ratios, the first layers get
    the lower one, and as many as the budget allows.
    """
    import torch_pruning

    wanted = budget * depl0.cost(dense, example).macs
    plan = depl0.plan(copy.deepcopy(dense), example, groups="inner")
    filters = {name.rpartition(".")[0] for name, _ in plan.filters}

    def cut(ratio: float, lower: int = 0) -> nn.Module:
        network = copy.deepcopy(dense).eval()
        layers = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        pruned = [layer for name, layer in layers if name in filters]
        torch_pruning.pruner.BasePruner(
            network,
            example,
            importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
            pruning_ratio=ratio,
            pruning_ratio_dict=dict.fromkeys(pruned[:lower], ratio - STEP),
            ignored_layers=[layer for name, layer in layers if name not in filters],
        ).step()
        return network

    def fits(network: nn.Module) -> bool:
        return depl0.cost(network, example).macs <= wanted

    ratio = STEP * bisect_left(range(round(1 / STEP)), True, key=lambda step: fits(cut(STEP * step)))
    most = bisect_left(range(1, len(filters) + 1), True, key=lambda lower: not fits(cut(ratio, lower)))
    return cut(ratio, most)


def _recovered(
    compact: nn.Module, dense: nn.Module, batches: list[Tensor], steps: Steps
) -> tuple[nn.Module, Agreement | None]:
    """Recover as depl0.prune does."""
    inputs, held_back = hold_out(batches)
    teacher = copy.deepcopy(dense).eval()
    if steps != 0:
        most, patience = (STEPS, PATIENCE) if steps == "auto" else (steps, None)
        distill(compact, teacher, inputs, held_back, steps=most, patience=patience, augment=True)
    return compact.eval(), measure_agreement(compact, teacher, held_back, compare_by(teacher, batches[0], 1))


CUTS = {"depl0": with_depl0, "l1-norm": with_l1_norm, "torch-pruning": with_torch_pruning}


# -- the page --------------------------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table for each network and kind of groups: methods down, budgets across."""
    lines = []
    for model, groups in sorted({(row["model"], row["groups"]) for row in rows}):
        part = [row for row in rows if (row["model"], row["groups"]) == (model, groups)]
        budgets = sorted({row["budget"] for row in part}, reverse=True)
        lines += [f"## {model} ({part[0]['dense_accuracy']:.2f} %)" + f', `groups="{groups}"`', ""]
        heads = [f"{budget:.0%} of the MACs" for budget in budgets]
        lines += ["| method | steps | " + " | ".join(heads) + " | CPU seconds |"]
        lines += ["|---|---|" + "---|" * (len(budgets) + 1)]
        for chosen in sorted({_settings(row) for row in part}):
            same = [row for row in part if _settings(row) == chosen]
            method, steps, size, blocks = chosen
            cells = [mean_spread([r["accuracy"] for r in same if r["budget"] == b], count=True) for b in budgets]
            cells.append(mean_spread([r["processor_seconds"] for r in same if "processor_seconds" in r], 0))
            training = f"{steps} of {size}, {blocks:g}" if steps else "none"
            lines.append(f"| {method} | {training} | " + " | ".join(cells) + " |")
        commits = sorted({row["commit"] for row in part})
        rates = ", ".join(f"{lr:g}" for lr in sorted({row["lr"] for row in part}))
        lines += ["", f"Commits {', '.join(commits)}; learning rate {rates}, `augment=True`.", ""]
    return lines


def _settings(row: dict[str, Any]) -> tuple[str, int, int, float]:
    """Return the settings shared by the rows of a line. Without steps, batch size and weights have no effect."""
    steps = row["most_steps"]
    return (row["method"], steps, row["batch_size"], row["blocks"]) if steps else (row["method"], 0, 0, 0.0)


if __name__ == "__main__":
    main()
