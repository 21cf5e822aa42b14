"""All methods in one harness: the same budget, extraction, epochs and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from depl0.app.methods import METHODS, Scored
from depl0.app.recipes.toml import read_recipe
from depl0.errors import TrainingError
from depl0.search.freezing import freeze_network
from tests.cli.conftest import Type, type_command  # noqa: F401
from tests.networks.coupled import gated_network, some_batches
from tests.networks.tiny import Noisy, TinyNet, interrupt, run, tiny_recipe
from tests.support.resume import what_matters

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

NAMES = sorted(METHODS)
SCORED = [name for name in NAMES if isinstance(METHODS[name], Scored)]
AT_ONCE = ["fpgm", "hrank", "l1-norm", "random", "reconstruction", "taylor"]


def test_the_methods_are_those_we_promise() -> None:
    assert {*AT_ONCE, "dep-l0", "l0-hc", "sfp", "slimming"} == set(NAMES)
    assert all(method.reference and type(method).__doc__ for method in METHODS.values())
    assert [name for name in SCORED if not METHODS[name].trains] == AT_ONCE  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SCORED)
def test_the_budget_is_kept_and_used(name: str) -> None:
    gated, method = gated_network(), METHODS[name]
    assert isinstance(method, Scored)
    raw = method.scores(gated, some_batches(), F.cross_entropy, torch.Generator().manual_seed(0))
    scores = method.comparable(gated.plan, raw)
    frozen = freeze_network(gated, gated.config.changed(budget=0.5), scores=scores)
    assert set(frozen.gates.tolist()) == {0.0, 1.0}
    assert gated.snapshot().share(frozen.gates > 0, "macs") <= 0.5
    for gate in (frozen.gates == 0).nonzero().flatten().tolist():  # no room for another one
        more = frozen.gates.clone()
        more[gate] = 1
        assert gated.snapshot().share(more > 0, "macs") > 0.5
    best = int(scores.argmax())
    assert frozen.gates[best] == 1
    assert gated.kept_cost().macs <= 0.5 * gated.dense_cost.macs


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_command(type_command: Type, tmp_path: Path, name: str) -> None:  # noqa: F811
    typed = type_command(
        f"prune digits --method {name} --epochs 1 --finetune-epochs 1 --set data.limit_train=128 --device cpu "
        "--quiet --json "
        "--set search.dense_baseline=false --set run.trackers=[]"
    )
    assert typed.code == 0, typed.err
    summary: dict[str, Any] = json.loads(typed.out)
    folder = tmp_path / "runs" / ("digits" if name == "dep-l0" else f"digits-{name}")
    assert summary == json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["epochs"]) == (name, {"search": 1, "finetune": 1})
    assert 0.22 < summary["budget_reached"] <= 0.25
    recipe = read_recipe(folder / "recipe.toml")
    assert (recipe.gates.method, recipe.gates.generator) == (name, "independent" if name == "l0-hc" else "fc")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["method"]) for line in lines if "event" not in line] == [
        ("search", name), ("finetune", name),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method fpgm --set penalty.weight=1e-6", "gates.budget must be set where gates.method is 'fpgm'"),
        ("--method l0-hc --set gates.generator=fc", "gates.generator must be 'independent' where gates.method"),
        ("--method slimming --model lenet5 --data digits --set data.image_size=28", "needs a norm"),
    ],
)
def test_bad_input(type_command: Type, tmp_path: Path, words: str, message: str) -> None:  # noqa: F811
    typed = type_command(f"prune digits {words} --device cpu")
    assert typed.code != 0
    assert message in typed.err and "hint:" in typed.err and "Traceback" not in typed.err
    assert not (tmp_path / "runs").exists()


# -- epochs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_all_methods_get_as_many_epochs(name: str) -> None:
    generator = "independent" if name == "l0-hc" else "fc"
    for weights in ("", "some.safetensors"):
        recipe = tiny_recipe(gates__method=name, gates__generator=generator, model__weights=weights)
        assert recipe.search_epochs + recipe.finetune_epochs == 5
        assert (recipe.search_epochs == 0) == (name in AT_ONCE and bool(weights))


def test_given_weights_are_cut_at_once(tmp_path: Path) -> None:
    torch.manual_seed(5)
    save_file(TinyNet().state_dict(), tmp_path / "w.safetensors")
    reporter = Noisy()
    recipe = tiny_recipe(gates__method="l1-norm", model__weights=str(tmp_path / "w.safetensors"))
    summary = run(recipe, tmp_path / "run", reporter)
    assert [(line["phase"], line["epoch"]) for line in reporter.lines] == [("finetune", n) for n in range(1, 6)]
    assert summary["epochs"] == {"search": 0, "finetune": 5} and summary["steps"] == 15
    rates = [line["weight_lr"] for line in reporter.lines]
    assert rates == sorted(rates, reverse=True) and rates[2] > rates[4] > 0  # one schedule over all of them


def test_slimming_shrinks_scales_by_the_recipes_weight(tmp_path: Path) -> None:
    losses = {}
    for weight in (0.0, None, 0.1):
        reporter = Noisy()
        run(tiny_recipe(gates__method="slimming", gates__method_weight=weight), tmp_path / str(weight), reporter)
        line = reporter.lines[0]
        losses[weight] = line["loss"] - line["task_loss"]
    assert losses[0.0] == 0
    assert losses[None] == pytest.approx(14 * 1e-4, rel=0.2)  # 14 scales, born as ones
    assert losses[0.1] == pytest.approx(14 * 0.1, rel=0.3)


# -- going on after a stop -------------------------------------------------------------------------------------------

STOPS = [
    ("slimming", [9]),  # the end of the search
    ("sfp", [5, 6]),  # the last step of an epoch: the filters are set to zero after the stop
]


@pytest.mark.parametrize(("name", "steps"), STOPS)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    name: str, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    save_file(TinyNet().state_dict(), "w.safetensors")
    recipe = tiny_recipe(gates__method=name)
    run(recipe, tmp_path / "whole")
    done = 0
    for step in steps:
        with pytest.raises(TrainingError, match=f"interrupted at step {step};"):
            run(recipe, tmp_path / "run", Noisy(at_step=step - done, act=interrupt), resume=done > 0)
        done = step
    run(recipe, tmp_path / "run", resume=True)
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "whole")
