"""Measure the overhead of gates in a training step: time, operators and memory.

    python benchmarks/step.py OUT --model resnet56 --model vgg16 --repeats 15 --threads 1
    python benchmarks/step.py OUT --parts --model resnet56 --batch 64 --repeats 25 --threads 1

The step is the same as in ``depl0 prune``: the same optimizers, loss and budget. All variants are timed alternately in
one process, so that noise affects all of them equally.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from accelerate import Accelerator
from counting import OperatorCount, counting_saved_bytes
from torch import Tensor, nn

from depl0.analysis.plan import Plan
from depl0.app.data import Data
from depl0.app.data.base import DataInfo
from depl0.app.models.spec import factory
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.folder import RunFolder, environment
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.execution import set_channels_last
from depl0.app.runtime.processes import make_accelerator
from depl0.app.table import markdown_grid
from depl0.app.training.loop import prepare_phase, train_step
from depl0.app.training.phase import Phase
from depl0.app.training.prune import dense_phase
from depl0.app.training.search import SearchPhase
from depl0.app.training.session import Session
from depl0.app.training.setup import attach_for, gate_config
from depl0.app.training.tracking import Trackers
from depl0.gated import GatedModel, attach
from depl0.gates.generators import make_generator
from depl0.host.inputs import ExampleInputs
from depl0.search.search import Search

STEPS_PER_EPOCH = 391
"""as CIFAR-10 has at batch 128: a budget moves its threshold once in every step of such a search"""

IMAGE_SHAPE, CLASSES = (3, 32, 32), 10
EXTRA_PER_GROUP, EXTRA = 10, 80
"""the most non-view operators that gates may add to a step: per group, and in all"""


@dataclass(frozen=True)
class Variant:
    """One way to train a network."""

    name: str
    fields: dict[str, Any] | None
    """of the recipe; None: without gates"""


_BUDGET = {"gates.budget": 0.5}
_PENALTY = {"penalty.weight": 1e-6, "penalty.kind": "params"}
_FC, _BACKWARD = {"gates.generator": "fc"}, {"gates.generator": "fc", "gates.direction": "backward"}
_INDEPENDENT = {"gates.generator": "independent"}

DENSE = Variant("dense", None)
VARIANTS = (
    DENSE,
    Variant("independent, budget", {**_INDEPENDENT, **_BUDGET}),
    Variant("fc, budget", {**_FC, **_BUDGET}),
    Variant("fc backward, budget", {**_BACKWARD, **_BUDGET}),
    Variant("independent, penalty", {**_INDEPENDENT, **_PENALTY}),
    Variant("fc, penalty", {**_FC, **_PENALTY}),
    Variant("fc of the paper, penalty", {**_FC, **_PENALTY, "gates.preset": "paper"}),
)


@dataclass(frozen=True)
class Count:
    """Counts that do not depend on timing."""

    groups: int
    operators: int
    non_view: int
    saved_bytes: int


@dataclass(frozen=True)
class Time:
    """Seconds of a step, and their ratio to the dense step of the same round: median, half of the middle 50 %.

    The clock's seconds are what one waits for; those of the processor hardly change when others use the machine too.
    """

    seconds: float
    seconds_spread: float
    ratio: float
    ratio_spread: float
    cpu_ratio: float
    cpu_ratio_spread: float


@final
class Stepper:
    """Takes training steps of one variant, always on the same batch. Variants of a network can share their plan."""

    def __init__(
        self, model: str, variant: Variant, batch: int, channels_last: bool = False, plan: Plan | None = None
    ) -> None:
        recipe = _recipe(model, batch, variant)
        self._engine = make_accelerator(recipe)
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(batch, *IMAGE_SHAPE, generator=generator)
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        self._images, self._labels = images.to(self._engine.device), labels.to(self._engine.device)
        session = self._session = _session(recipe, self._engine, OneBatch(self._images, self._labels))
        host = factory(model, CLASSES, *IMAGE_SHAPE[:2])().to(self._engine.device)
        self.plan, self.groups = plan, 0
        if variant.fields is None:
            self._phase: Phase = dense_phase(session, host)
        else:
            gated = _gated(recipe, host, self._images[:1], plan)
            self._phase = SearchPhase(session, gated)
            self.plan, self.groups = gated.plan, len(gated.plan.groups)
        if channels_last:
            set_channels_last(self._phase.model)
        self._wrapped = prepare_phase(self._engine, self._phase).train()
        self._taken = 0

    @property
    def network(self) -> nn.Module:
        """Return the network that is trained, gates included."""
        return self._phase.model

    def step(self) -> None:
        """Take one step, as the training loop does."""
        self._phase.before_step()
        for scheduled in self._phase.optimizers:
            scheduled.set_rate(self._taken / STEPS_PER_EPOCH)
        train_step(self._session, self._phase, self._wrapped, self._images, self._labels)
        self._taken += 1

    def count(self) -> Count:
        """Count operators and saved memory of one step, after one that makes the optimizers' state."""
        if self._taken == 0:
            self.step()
        with OperatorCount() as operators, counting_saved_bytes(self.network) as saved:
            self.step()
        non_view = operators.others.total()
        return Count(self.groups, non_view + operators.views.total(), non_view, saved.total)

    def seconds(self) -> tuple[float, float]:
        """Time one step, by the clock and by the processor."""
        start, busy = time.perf_counter(), time.process_time()
        self.step()
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)
        return time.perf_counter() - start, time.process_time() - busy


@final
class OneBatch:
    """The same batch in every step of an epoch as long as CIFAR-10's."""

    steps = STEPS_PER_EPOCH

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.size = len(images) * STEPS_PER_EPOCH
        self._batch = (images, labels)

    def epoch(self, number: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batch repeatedly."""
        for _ in range(first_step, self.steps):
            yield self._batch

    def plain(self) -> OneBatch:
        """Return these batches, which are not augmented."""
        return self


def make_steppers(
    model: str,
    batch: int,
    channels_last: bool = False,
    variants: Sequence[Variant] = VARIANTS,
    plan: Plan | None = None,
) -> dict[str, Stepper]:
    """Return a stepper for every variant of a network, which is analysed once if its plan is not given."""
    steppers: dict[str, Stepper] = {}
    for variant in variants:
        steppers[variant.name] = Stepper(model, variant, batch, channels_last, plan)
        plan = steppers[variant.name].plan
    return steppers


def measure_steps(model: str, batch: int, repeats: int, channels_last: bool = False) -> list[dict[str, Any]]:
    """Return one row of figures for every variant."""
    steppers = make_steppers(model, batch, channels_last)
    counts = {name: stepper.count() for name, stepper in steppers.items()}
    times = _interleaved(steppers, repeats)
    return [_row(name, counts[name], times[name], counts[DENSE.name]) for name in steppers]


def _interleaved(steppers: dict[str, Stepper], repeats: int) -> dict[str, Time]:
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in steppers}
    names = list(steppers)
    for number in range(repeats):
        for name in names[number % len(names) :] + names[: number % len(names)]:  # no variant is always first
            rounds[name].append(steppers[name].seconds())
    times = {}
    for name, found in rounds.items():
        pairs = list(zip(found, rounds[DENSE.name], strict=True))
        ratios, cpu_ratios = ([own[kind] / dense[kind] for own, dense in pairs] for kind in (0, 1))
        times[name] = Time(*_middle([clock for clock, _ in found]), *_middle(ratios), *_middle(cpu_ratios))
    return times


def _middle(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, (high - low) / 2


def _row(name: str, count: Count, time_: Time, dense: Count) -> dict[str, Any]:
    extra = count.non_view - dense.non_view
    return {
        "variant": name,
        "groups": count.groups,
        "seconds": time_.seconds,
        "seconds_spread": time_.seconds_spread,
        "ratio": time_.ratio,
        "ratio_spread": time_.ratio_spread,
        "cpu_ratio": time_.cpu_ratio,
        "cpu_ratio_spread": time_.cpu_ratio_spread,
        "operators": count.operators,
        "non_view_operators": count.non_view,
        "extra_operators": extra,
        "extra_per_group": extra / count.groups if count.groups else None,
        "extra_allowed": EXTRA_PER_GROUP * count.groups + EXTRA if count.groups else None,
        "saved_bytes": count.saved_bytes,
        "saved_ratio": count.saved_bytes / dense.saved_bytes,
    }


def bench_step(
    models: Sequence[str], batch: int = 128, repeats: int = 7, threads: int | None = None, channels_last: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure the step of several networks; after each, yield all results so far and the machine."""
    if threads is not None:
        torch.set_num_threads(threads)
    result: dict[str, Any] = {
        "batch": batch,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "channels_last": channels_last,
        "networks": {},
        "load": {},
        "environment": environment(),
    }
    for model in models:
        result["networks"][model] = measure_steps(model, batch, repeats, channels_last)
        result["load"][model] = machine_load()
        yield result


def measure_parts(model: str, batch: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return milliseconds of CPU time that a penalty and a budget add to a step: median, and the middle half.

    The difference of whole steps is lost in their noise. Therefore the added operations are timed inside steps of the
    given batch size, with the caches as the network leaves them: the call of ``gated.penalty``, its backward pass
    (which autograd runs before that of the network), and ``search.step``, which moves the threshold.
    """
    images = torch.randn(batch, *IMAGE_SHAPE, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (batch,), generator=torch.Generator().manual_seed(0))
    found: dict[str, list[float]] = {"no penalty": [], "penalty": [], "budget": []}
    trained = {}
    for mode in found:
        host = factory(model, CLASSES, *IMAGE_SHAPE[:2])()
        gated = attach(host, images[:1], budget=0.5 if mode == "budget" else None).train()
        weights, gates = gated.parameter_groups(lr=0.1, steps=4000)
        optimizers = [torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])]
        search = (
            Search(gated, 4000, optimizers=optimizers, warmup=0.0, first_scores="none") if mode == "budget" else None
        )
        trained[mode] = gated, optimizers, search
    for _ in range(repeats + 2):
        for mode, (gated, optimizers, search) in trained.items():
            begin = time.thread_time()
            if search is not None:
                search.step()
            before = time.thread_time() - begin
            loss = nn.functional.cross_entropy(gated(images), labels)
            reached: list[float] = []
            assert loss.grad_fn is not None
            loss.grad_fn.register_prehook(lambda _, reached=reached: reached.append(time.thread_time()))
            begin = time.thread_time()
            total = loss + 0.1 * gated.penalty("macs") if mode == "penalty" else loss * 1.0
            total.backward()
            found[mode].append(1000 * (before if search is not None else reached[0] - begin))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    pairs = zip(found["penalty"], found["no penalty"], strict=True)
    parts = {"penalty": [with_it - without for with_it, without in pairs], "budget": found["budget"]}
    return {name: tuple(statistics.quantiles(values[2:], n=4)) for name, values in parts.items()}  # type: ignore[misc]


def machine_load() -> float | None:
    """Return the system load, which helps to interpret times; None if it is not available."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _gated(recipe: Recipe, host: nn.Module, example: Tensor, plan: Plan | None) -> GatedModel:
    """Attach gates to a network as ``depl0 prune`` does, reusing an earlier analysis if there is one."""
    if plan is None:
        return attach_for(recipe, host, example)
    gates = recipe.gates
    sizes = [group.size for group in plan.groups]
    rng = torch.Generator().manual_seed(recipe.run.seed)
    generator = make_generator(gates.generator, sizes, direction=gates.direction, preset=gates.preset, rng=rng)
    return GatedModel(host, plan, generator, ExampleInputs.of(example), gate_config(recipe))


def _recipe(model: str, batch: int, variant: Variant) -> Recipe:
    fields = {
        "model.spec": model,
        "data.batch_size": batch,
        "search.warmup": 0.0,
        "run.trackers": [],
        **(variant.fields or {}),
    }
    return with_overrides(catalog.get("custom"), fields)


def _session(recipe: Recipe, accelerator: Accelerator, batches: OneBatch) -> Session:
    size = batches.size
    info = DataInfo("one random batch", CLASSES, None, IMAGE_SHAPE, train_size=size, test_size=size)
    folder = RunFolder(Path("."))  # nothing is written: no phase is run to its end
    one: Any = batches
    data, trackers = Data(info, one, one), Trackers(lambda text: None)
    return Session(recipe, accelerator, data, task_of(recipe), folder, Reporter(), trackers)


def step_table(result: dict[str, Any]) -> str:
    """Return the figures of all networks as Markdown."""
    times, counts = ["time", "±", "CPU time", "±", "s"], ["operators", "non-view", "extra", "per group", "allowed"]
    head = ["", *times, *counts, "saved MiB", "saved"]
    parts = []
    for model, rows in result["networks"].items():
        groups = max(row["groups"] for row in rows)
        parts.append(
            f"{model}, {groups} groups, batch {result['batch']}:\n\n{markdown_grid(head, [_cells(r) for r in rows])}"
        )
    return "\n\n".join(parts)


def _cells(row: dict[str, Any]) -> list[str]:
    has_gates = row["groups"] > 0
    return [
        row["variant"],
        f"{row['ratio']:.3f}",
        f"{row['ratio_spread']:.3f}",
        f"{row['cpu_ratio']:.3f}",
        f"{row['cpu_ratio_spread']:.3f}",
        f"{row['seconds']:.3f}",
        f"{row['operators']:,}",
        f"{row['non_view_operators']:,}",
        f"{row['extra_operators']:+d}" if has_gates else "",
        f"{row['extra_per_group']:.1f}" if has_gates else "",
        f"{row['extra_allowed']}" if has_gates else "",
        f"{row['saved_bytes'] / 2**20:.1f}",
        f"{row['saved_ratio']:.4f}",
    ]


def main() -> None:
    """Measure, print the table and write step.json and step.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="append", help="network for 32x32 images; can be repeated")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7, help="rounds; every variant takes one step in each")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--parts", action="store_true", help="time what a penalty and a budget add, inside a step")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    models = args.model or ["resnet56", "vgg16"]
    if args.parts:
        torch.set_num_threads(args.threads or torch.get_num_threads())
        parts = {model: measure_parts(model, args.batch, args.repeats) for model in models}
        (args.out / "parts.json").write_text(json.dumps({"batch": args.batch, "repeats": args.repeats, **parts}) + "\n")
        for model, rows in parts.items():
            for name, (low, middle, high) in rows.items():
                print(f"{model}, {name}: {middle:.2f} ms ({low:.2f} to {high:.2f}), n {args.repeats}")
        return
    for result in bench_step(models, args.batch, args.repeats, args.threads, args.channels_last):
        (args.out / "step.json").write_text(json.dumps(result, indent=2) + "\n")
        (args.out / "step.md").write_text(step_table(result) + "\n")
    print(step_table(result))


if __name__ == "__main__":
    main()
