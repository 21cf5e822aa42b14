"""Should gates know which channels of their layer are open? Makes docs/results/in-layer/search.{json,md}.

    python benchmarks/conditional.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors
    python benchmarks/paper_regime.py REGIME --data cifar10:DIR --parts M4    # from scratch; the page reads --regime
    python benchmarks/conditional.py OUT    # the page alone, from the rows that are there

The generator ``conditional`` gives every gate the score log e_i(S) + b_i, against its cost: e_i(S) is the error of
closing channel i while the rest S of its layer's open channels makes up for it, or, for a closed one, what it would
take away from the error if it came back; b is learned. e is measured anew every N steps, with the weights and the open
gates of that step. ``conditional-order`` takes it along reconstruction's order of removal: S is what is left when it is
the channel's turn, so that of two channels that stand in for each other only the first looks dispensable. The control
``conditional-off`` has the same errors for S = all channels. Beside them, from the same trained network: L0-HC
(``independent``), Dep-L0 (``fc``), and ``reconstruction``, which cuts at once. All of them have 400 steps of 64 images
with the dense network as a teacher; learned gates move in the first 200 of them, are then frozen and refitted. Rows
that OUT already has are not computed again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from common import mean_spread, network_options, provenance, read_rows, save_rows
from one_shot import Images, accuracy, calibration
from short_recovery import Source, build
from torch import Tensor, nn

import depl0
from depl0.app.runs.folder import Lines
from depl0.app.table import markdown_grid
from depl0.app.weights import load_weights
from depl0.gated import GatedModel
from depl0.gates.generators import Generator, Memory, register
from depl0.gates.generators.layers import draw_output_bias
from depl0.host.inputs import ExampleInputs
from depl0.paper.claims.judge import LEAST_RANGE
from depl0.paper.claims.statistics import STEP, Curve, Difference, common_costs, difference, mean_at
from depl0.search.calibration import Calibration
from depl0.search.freezing import freeze_network
from depl0.search.recovery.distillation import DistillationLoss
from depl0.search.recovery.unlabelled import MOMENTUM, WEIGHT_DECAY, set_rate
from depl0.search.scores.reconstruction import (
    View,
    observe,
    reconstruction_scores,
    removal_order,
    scores_of_errors,
    view_errors,
)

KEY = ("arm", "budget", "seed", "split", "rate", "every")
ORDER, CONTROL = "conditional-order", "conditional-off"
ARMS = ("reconstruction", "independent", "fc", "conditional", ORDER, CONTROL)
STEPS, SEARCH, LR, BATCH_SIZE = 400, 200, 0.01, 64
FROM_SCRATCH_EVERY = 35
"""N from scratch: half an epoch"""
FROM_SCRATCH = ("conditional", CONTROL, "l0-hc", "dep")
"""arms of the paper's regime"""
REGIME_ROWS = Path(__file__).parents[1] / "docs/results/regime/results.jsonl"
CLOSED = 1e-3
"""the gate of a closed channel while it is looked at: what it would say can be seen, and does not change the rest"""


class Renewed(Generator):
    """Gives log α = what is known of a gate + b; what is known is renewed from outside, b is learned."""

    known: Tensor

    def build(self, rng: torch.Generator | None) -> None:
        """Make one flat vector for all gates."""
        self.own = nn.Parameter(torch.empty(sum(self.sizes), dtype=torch.float32))
        self.register_buffer("known", torch.zeros(sum(self.sizes), dtype=torch.float32))
        for group in self.order():
            draw_output_bias(self.bias(group), self.preset, rng)

    def step(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Give one group's log α, whatever came before it."""
        return self().narrow(0, sum(self.sizes[:group]), self.sizes[group]), memory

    def bias(self, group: int) -> Tensor:
        """Give the learned part."""
        return self.own.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    def forward(self) -> Tensor:
        """Give the flat log α of all gates in plan order."""
        return self.known + self.own

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the learned part so that the sum is this."""
        self.own.copy_(self._checked_start(log_alpha) - self.known)


@register("conditional")
@final
class Conditional(Renewed):
    """Is told errors given the open channels of the layer."""


@register(ORDER)
@final
class Ordered(Renewed):
    """Is told errors along the order in which the channels of the layer should go."""


@register(CONTROL)
@final
class Single(Renewed):
    """Is told errors as if all channels of the layer were open."""


@torch.no_grad()
def conditional_errors(gated: GatedModel, inputs: list[Tensor]) -> Tensor:
    """Return the error of every gate in the network with the gates that are open now, given what its arm says."""
    closed = gated.evaluation_gates().cpu() == 0
    gates = torch.where(closed, CLOSED, 1.0)
    errors = torch.zeros(gated.plan.num_gates, dtype=torch.float64)
    views = observe(gated, [ExampleInputs.of(batch) for batch in inputs], gates=gates)
    if gated.config.generator == ORDER:
        for group in gated.plan.groups:
            order, increments = removal_order(group, views, torch.ones_like(closed))
            errors[torch.tensor(order)] = torch.tensor(increments, dtype=torch.float64).cummax(0).values
    else:
        for view in views:
            read = view.gates[view.gates >= 0].unique()
            errors[read] += view_errors(view if gated.config.generator == CONTROL else given_open(view, closed), read)
    known = errors > 0
    return torch.where(known, errors, errors[known].log().mean().exp()).clamp_min(1e-12)


def given_open(view: View, closed: Tensor) -> View:
    """Return a view whose errors are those of an open channel given the open ones, and of a closed one's return.

    With A = G⁻¹ and C the closed columns, G_S⁻¹ = A_SS − A_SC·A_CC⁻¹·A_CS, and what the open channels cannot say of the
    closed ones has the covariance M = A_CC⁻¹. Of the error tr(W_C·M·W_Cᵀ), the return of c takes V_c·M_cc⁻¹·V_cᵀ away,
    with V = W_C·M. The weights of open channels are taken as they are: training has fitted them.
    """
    missing = [view.columns(gate) for gate in view.gates[view.gates >= 0].unique().tolist() if closed[gate]]
    if not missing:
        return view
    columns, weight = torch.cat(missing), view.weight.clone()
    rest = torch.linalg.inv(view.inverse[columns][:, columns])
    inverse = view.inverse - view.inverse[:, columns] @ rest @ view.inverse[columns]
    inverse[columns[:, None], columns] = rest
    weight[:, columns] = view.weight[:, columns] @ rest
    return View(view.gates, view.block, weight, inverse)


def renew(gated: GatedModel, inputs: list[Tensor], *, first: bool) -> None:
    """Tell the generator what its channels are worth now; with a budget it starts there, and the threshold follows."""
    generator, threshold = gated.generator, gated.engine.threshold
    scores = scores_of_errors(gated, conditional_errors(gated, inputs), "params" if threshold is None else "macs")
    generator.known.copy_(scores)  # type: ignore[union-attr, operator]
    if threshold is None:
        return
    if first:
        generator.start_from(scores)
    threshold.solve(generator().detach())


def renew_in_searches() -> None:
    """Let every search of this process renew what its generator knows, every :data:`FROM_SCRATCH_EVERY` steps.

    A run of ``depl0 prune`` has no place for that, since no generator of the package looks at the network.
    """
    step = depl0.Search.step

    def step_and_renew(search: depl0.Search) -> bool:
        rebuilt = step(search)
        if isinstance(search.gated.generator, Renewed) and (search.done - 1) % FROM_SCRATCH_EVERY == 0:
            assert search._calibration is not None
            renew(search.gated, search._calibration.inputs(128), first=False)
        return rebuilt

    depl0.Search.step = step_and_renew  # type: ignore[method-assign]


class Bench:
    """What all runs share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.sources = args, {}
        self.dense = build("resnet20")
        load_weights(self.dense, args.weights)
        self.dense = self.dense.to(memory_format=torch.channels_last).eval()
        self.file = args.out / "search.json"
        self.rows = read_rows(self.file)

    def row(self, arm: str, budget: float, seed: int, split: str, rate: float, every: int) -> dict[str, Any]:
        """Return a row, computed unless it is there."""
        cell = (arm, budget, seed, split, rate, every)
        for row in self.rows:
            if tuple(row[key] for key in KEY) == cell:
                return row
        start = time.process_time()
        source: Source = self.sources.setdefault(split, Source(self.args.data, split, BATCH_SIZE))
        torch.manual_seed(seed)
        run = Run(self.dense, source, budget, seed)
        compact, more = run.at_once() if arm == "reconstruction" else run.searched(arm, rate, every)
        row = dict(zip(KEY, cell, strict=True)) | more | {"accuracy": accuracy(compact, source.judged)}
        row |= {"macs_left": depl0.info(compact).macs_left, "processor_seconds": round(time.process_time() - start, 1)}
        self.rows.append(row | provenance())
        save_rows(self.file, self.rows)
        write_page(self.args.out, self.rows)
        print({key: value for key, value in row.items() if key != "kept"}, flush=True)
        return row


class Run:
    """One network on its way to a budget."""

    def __init__(self, dense: nn.Module, source: Source, budget: float, seed: int) -> None:
        self.dense, self.source, self.budget, self.seed = dense, source, budget, seed
        self.pairs: list[Images] = calibration(source.rest, seed)
        self.inputs = [x.to(memory_format=torch.channels_last) for x, _ in self.pairs]
        self.batches: Iterator[Images] = source.batches(seed)
        self.loss = DistillationLoss(copy.deepcopy(dense))
        self.done = 0

    def gated(self, generator: str) -> GatedModel:
        """Attach gates to a copy of the dense network."""
        host, example = copy.deepcopy(self.dense), self.inputs[0][:1]
        return depl0.attach(host, example, generator=generator, groups="inner", budget=self.budget)

    def at_once(self) -> tuple[nn.Module, dict[str, Any]]:
        """Cut by reconstruction, then train."""
        gated = self.gated("independent")
        scores = reconstruction_scores(gated, self.inputs, "macs")
        once = Calibration(self.inputs, self.inputs, self.inputs)
        freezing = freeze_network(gated, scores=scores, calibration=once, compensated=True)
        return self.finished(gated.extract(), gated, freezing.gates)

    def searched(self, generator: str, rate: float, every: int) -> tuple[nn.Module, dict[str, Any]]:
        """Learn the gates in the first half of the steps."""
        gated = self.gated(generator)
        renewed = generator.startswith("conditional")
        sgd = self.optimizer(gated.host)
        _, group = gated.parameter_groups(lr=LR, steps=SEARCH)
        adam = torch.optim.Adam([group | {"lr": rate * group["lr"]}])
        first = "none" if renewed else "reconstruction"
        search = depl0.Search(
            gated, SEARCH, calibrate=self.pairs, loss=F.cross_entropy, cut="never", compensate=True, first_scores=first
        )
        gated.train()
        for step in range(SEARCH):
            search.step()
            if renewed and step % every == 0:
                renew(gated, self.inputs[:1], first=step == 0)
            self.train_step(gated, [sgd, adam])
        freezing = search.freeze()
        return self.finished(search.finish(), gated, freezing.gates)

    def finished(self, compact: nn.Module, gated: GatedModel, gates: Tensor) -> tuple[nn.Module, dict[str, Any]]:
        """Train the compact network for the rest of the steps."""
        compact = compact.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        at_the_cut = accuracy(compact, (self.source.judged[0][:2000], self.source.judged[1][:2000]))
        sgd = self.optimizer(compact)
        compact.train()
        while self.done < STEPS:
            self.train_step(compact, [sgd])
        kept = {group.name: int((gates[group.gates] > 0).sum()) for group in gated.plan.groups}
        return compact.eval(), {"at_the_cut": at_the_cut, "kept": kept}

    def optimizer(self, network: nn.Module) -> torch.optim.SGD:
        """Return the optimizer of weights."""
        return torch.optim.SGD(network.parameters(), LR, MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)

    def train_step(self, network: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        """Take one step; the rate of weights follows one cosine over both halves."""
        set_rate(optimizers[0], LR, self.done, STEPS)
        images, labels = next(self.batches)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with self.loss.watch(network) as blocks:
                outputs = network(images)
            loss = self.loss(F.cross_entropy(outputs, labels), outputs, images, blocks)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1


def choose(bench: Bench) -> dict[str, tuple[float, int]]:
    """Choose rate and N of the new generators on held-out training images, with a seed of its own.

    The control takes those of ``conditional``. L0-HC and Dep-L0 have depl0's default rate, so that only the new
    generators can gain by the choice.
    """
    args, chosen = bench.args, {"reconstruction": (0.0, 0), "independent": (1.0, 0), "fc": (1.0, 0)}
    for arm in ("conditional", ORDER):
        trials = list(itertools.product(args.rates, args.every))
        if len(trials) > 1:
            rows = [bench.row(arm, args.choose_at, 100, "validation", *trial) for trial in trials]
            best = max(rows, key=lambda row: row["accuracy"])
            trials = [(best["rate"], best["every"])]
        chosen[arm] = trials[0]
    return {**chosen, CONTROL: chosen["conditional"]}


def show(apart: Difference) -> str:
    """Return a difference with its interval."""
    return f"{apart.mean:+.2f}" + ("" if apart.low is None else f" ({apart.low:+.2f} to {apart.high:+.2f})")


def from_scratch(rows: list[dict[str, Any]]) -> list[str]:
    """Return the section on the paper's regime: pairs of arms at equal cost, seed by seed, as its judge does it."""
    curves: dict[str, dict[int, Curve]] = {}
    for row in rows:
        if row["network"] == "vgg" and row["arm"] in FROM_SCRATCH and row["seed"] < 100:
            seeds = curves.setdefault(row["arm"], {})
            seeds[row["seed"]] = {**seeds.get(row["seed"], {}), row["macs_left"]: row["test"]}
    body = []
    for left, right in itertools.combinations(FROM_SCRATCH, 2):
        values: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for seed in curves.get(left, {}).keys() & curves.get(right, {}).keys():
            costs = common_costs(curves[left][seed], curves[right][seed])
            if len(costs) * STEP >= LEAST_RANGE:
                for arm, found in zip((left, right), values, strict=True):
                    found[seed] = mean_at(curves[arm][seed], costs)
        apart = difference(*values)
        if apart is not None:
            cells = [mean_spread(list(found.values()), count=True) for found in values]
            body.append([f"{left} against {right}", *cells, show(apart)])
    if not body:
        return []
    head = ["compared", "first", "second", "in favour of the first"]
    return ["## From scratch", "", REGIME, "", markdown_grid(head, body, is_number=[False] * len(head)), ""]


def write_page(out: Path, rows: list[dict[str, Any]], regime: Path = REGIME_ROWS) -> None:
    """Write ``search.md``."""
    test = [row for row in rows if row["split"] == "test"]
    lines = [INTRODUCTION]
    for budget in sorted({row["budget"] for row in test}, reverse=True):
        found = {a: {r["seed"]: r["accuracy"] for r in test if (r["arm"], r["budget"]) == (a, budget)} for a in ARMS}
        body = []
        for arm, values in found.items():
            pairs = []
            for other in ("reconstruction", CONTROL):
                seeds = sorted(values.keys() & found[other].keys())
                apart = difference({s: values[s] for s in seeds}, {s: found[other][s] for s in seeds})
                pairs.append("" if apart is None or arm == other else show(apart))
            own = [r for r in test if (r["arm"], r["budget"]) == (arm, budget)]
            seconds = mean_spread([r["processor_seconds"] for r in own], 0)
            body.append([arm, mean_spread(list(values.values()), count=True), *pairs, seconds])
        head = ["channels by", "test accuracy", "− reconstruction", "− conditional-off", "processor seconds"]
        lines += [f"## {budget:.0%} of the MACs", "", markdown_grid(head, body, is_number=[False] * len(head)), ""]
    lines += from_scratch(Lines(regime).read())
    trials = [row for row in rows if row["split"] == "validation"]
    if trials:
        head = ["channels by", "MACs left", "factor on the gates' rate", "N", "accuracy"]
        body = [
            [r["arm"], f"{r['budget']:.0%}", f"{r['rate']:g}", str(r["every"] or ""), f"{r['accuracy']:.2f}"]
            for r in trials
        ]
        lines += ["## Choices of rate and N", "", "On 5,000 held-out training images, one seed of its own.", ""]
        lines += [markdown_grid(head, body, is_number=[False] * len(head)), ""]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    lines += [f"Every run: `search.json`. Written by `benchmarks/conditional.py`, commit {commits}.", ""]
    (out / "search.md").write_text("\n".join(lines))


INTRODUCTION = """\
# A search that knows which channels of a layer are open

The trained ResNet-20 on CIFAR-10, inner groups, 400 steps of 64 images in bfloat16, one cosine from 0.01, the dense
network as a teacher (0.9 of the loss, T = 4, and block outputs with a weight of 80). `reconstruction` cuts at once and
trains for 400 steps; learned gates close during the first 120, are frozen and refitted after 200, and the rest train
what is left. `independent` (L0-HC) and `fc` (Dep-L0) start from reconstruction's scores. `conditional` has
log e_i(S) + b_i for the channels S of the layer that are open, measured anew every N steps; `conditional-order` has for
S the channels that are left when it is channel i's turn in reconstruction's order, and `conditional-off`, the control,
all channels. Test accuracy in per cent, mean ± sample standard deviation over n seeds; differences paired by seed, with
Student's 95 % interval.

No arm that learns its gates comes up to reconstruction, which needs no search, and neither form of `conditional` is
above its control. At 15 % `conditional` breaks down: rate and N were chosen at 25 %. From scratch it is level with
L0-HC and with its control. So the generator is not in the package, only in this benchmark.
"""

REGIME = """\
VGG16 with an eighth of the channels in [the paper's regime](../regime/RULES.md): 20 epochs, fixed λ, no budget. Here
log α_i = b_i + the standardised log e_i(S), measured anew every 35 steps; b starts and moves as in `l0-hc` (L0-HC),
with its rate and λ; `dep` is Dep-L0. Test accuracy at equal cost: the mean over the MACs that both arms cover, seed by
seed."""


def main() -> None:
    """Choose, then run seed by seed."""
    parser = network_options(__doc__, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.25, 0.15])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 0.25])
    parser.add_argument("--every", nargs="+", type=int, default=[10])
    parser.add_argument("--choose-at", type=float, default=0.25)
    parser.add_argument("--regime", type=Path, default=REGIME_ROWS, help="rows of benchmarks/paper_regime.py")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.data:
        write_page(args.out, read_rows(args.out / "search.json"), args.regime)
        return
    bench = Bench(args)
    chosen = choose(bench)
    for budget, seed, arm in itertools.product(args.budgets, args.seeds, args.arms):
        bench.row(arm, budget, seed, "test", *chosen[arm])


if __name__ == "__main__":
    main()
