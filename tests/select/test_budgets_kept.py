"""Budgets are kept: for every generator, direction and choice of groups, and on the way there."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from depl0.analysis.plan import Plan
from depl0.analysis.planning import plan
from depl0.app.models.resnet import resnet20
from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides
from depl0.config import GateConfig
from depl0.gated import GatedModel
from depl0.gates.generators import make_generator
from depl0.host.inputs import ExampleInputs
from depl0.select.gates import minimum_share, select_gates
from tests.networks.tiny import run
from tests.support.sampling import covering

pytestmark = [pytest.mark.structures, pytest.mark.usefixtures("remembered_plans")]

EXAMPLE = ExampleInputs.of(torch.zeros(1, 3, 16, 16))
BUDGETS = [0.9, 0.7, 0.5, 0.3]


@pytest.fixture(scope="module")
def planned() -> dict[str, tuple[nn.Module, Plan]]:
    torch.manual_seed(0)
    host = resnet20()
    return {groups: (host, plan(host, EXAMPLE, groups=groups)) for groups in ("all", "inner")}


CASES = [
    ("fc", "forward", "all", "macs"),
    ("fc", "backward", "inner", "params"),
    ("independent", "forward", "inner", "macs"),
    ("lstm-shared", "backward", "all", "params"),
]


@pytest.mark.parametrize(("place", "case"), list(enumerate(CASES)), ids=["-".join(case) for case in CASES])
def test_the_compact_network_costs_what_was_asked(
    planned: dict[str, tuple[nn.Module, Plan]], place: int, case: tuple[str, str, str, str]
) -> None:
    name, direction, groups, of = case
    host, its_plan = planned[groups]
    rng = torch.Generator().manual_seed(place)
    generator = make_generator(name, [group.size for group in its_plan.groups], direction=direction, rng=rng)
    generator.start_from(torch.randn(its_plan.num_gates, generator=rng))
    gated = GatedModel(host, its_plan, generator, EXAMPLE, GateConfig(of=of))
    budget = BUDGETS[place % len(BUDGETS)]
    if budget < minimum_share(gated.snapshot(), gated.config):  # the frozen layers do not allow it
        budget = 0.5
    gated = GatedModel(host, its_plan, generator, EXAMPLE, gated.config.changed(budget=budget))
    network = gated.snapshot()
    selection = select_gates(network, gated.config)
    assert budget - 0.01 <= network.share(selection.gates > 0, of) <= budget


@pytest.mark.parametrize(("epochs", "generator"), covering([6, 30], ["independent", "fc"]))
def test_short_and_long_searches_need_no_tuning(tmp_path: Path, epochs: int, generator: str) -> None:
    changes = {
        "search.epochs": epochs,
        "search.dense_baseline": False,
        "finetune.epochs": 0,
        "gates.generator": generator,
        "gates.budget": 0.5,
        "data.limit_train": 192,
        "data.batch_size": 32,
        "run.trackers": [],
    }
    recipe = with_overrides(catalog.get("digits"), changes)  # 224 gates: one of them costs less than 1 %
    summary = run(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    search = [line for line in lines if line.get("phase") == "search" and "expected" in line]
    shares = [line["expected"]["macs_share"] for line in search[int(recipe.search.warmup * len(search)) :]]
    assert all(after <= before + 0.02 for before, after in itertools.pairwise(shares))
    assert abs(shares[-1] - 0.5) < 0.025  # neither missed nor overshot; 36 steps, and rounding differs by machine
    assert summary["budget"] == 0.5
    assert summary["budget_reached"] <= 0.5
