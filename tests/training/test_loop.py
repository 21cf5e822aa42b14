"""The training loop: what a step does, and when it stops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import depl0.app.training.loop as loop
from depl0.app.runs.checkpoint import load_newest
from depl0.app.runtime.processes import make_accelerator
from depl0.app.training.prune import finetune
from depl0.app.training.search import SearchPhase
from depl0.app.training.setup import open_data_for
from depl0.errors import TrainingError
from depl0.gates import hard_concrete
from tests.networks.tiny import Noisy, TinyNet, interrupt, run, tiny_recipe
from tests.support.session import make_session

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

# -- the paper's loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["params", "macs", "groups", "chain", "groups-k2"])
def test_the_loss_has_the_penalty_in_it(tmp_path: Path, kind: str) -> None:
    weight = 0.01
    session, gated = make_session(tmp_path, penalty__weight=weight, penalty__kind=kind, search__warmup=0.0)
    phase = SearchPhase(session, gated)
    phase.before_step()
    images, labels = next(iter(session.data.train.epoch(0)))
    outputs, penalty = phase.called(images)
    whole, task, _ = phase.losses((outputs, penalty), labels)
    torch.testing.assert_close(task, F.cross_entropy(outputs, labels))
    torch.testing.assert_close(whole - task, weight * gated.penalty(kind, scale="count"), rtol=1e-4, atol=1e-4)
    (of_penalty,) = torch.autograd.grad(whole - task, [gated.generator.bias(0)], retain_graph=True)
    (direct,) = torch.autograd.grad(weight * gated.penalty(kind, scale="count"), [gated.generator.bias(0)])
    torch.testing.assert_close(of_penalty, direct)


def test_the_warm_up_has_open_gates_and_no_penalty(tmp_path: Path) -> None:
    session, gated = make_session(tmp_path, penalty__weight=1.0, search__warmup=0.4)
    phase = SearchPhase(session, gated)
    images, labels = next(iter(session.data.train.epoch(0)))
    gated.train()
    for _ in range(4):  # of 9 steps, the first 3.6 are warm-up
        phase.before_step()
    assert bool((gated.evaluation_gates() == 1).all())
    whole, task, _ = phase.losses(phase.called(images), labels)
    assert torch.equal(whole, task)
    phase.before_step()
    whole, task, _ = phase.losses(phase.called(images), labels)
    assert float(whole.detach()) > float(task.detach())


def test_gates_are_sampled_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    sample = hard_concrete.sample_gates
    monkeypatch.setattr(hard_concrete, "sample_gates", lambda *args: drawn.append(sample(*args)) or drawn[-1])
    recipe = tiny_recipe(penalty__weight=0.0, search__warmup=0.0, search__epochs=1, finetune__epochs=0)
    run(recipe, tmp_path / "run")
    assert len(drawn) == 3
    assert not torch.equal(drawn[0], drawn[1])


def test_gate_warm_up_looks_at_no_value(tmp_path: Path) -> None:
    session, gated = make_session(tmp_path, search__warmup=0.4)
    before_step = SearchPhase(session, gated).before_step
    with NoLooking():
        before_step()


class NoLooking(TorchDispatchMode):
    """Fails where a number is taken off the device, which would wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default")), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("target", [{"gates__budget": 0.5}, {"penalty__weight": 1e-3}])
def test_a_step_waits_for_nothing(tmp_path: Path, target: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depl0.search.search.CHECKS", 1)  # between two checks of the gates
    session, gated = make_session(tmp_path, search__warmup=0.0, search__clip_norm=1.0, **target)
    phase = SearchPhase(session, gated)
    phase.before_step()
    wrapped = loop.prepare_phase(session.accelerator, phase).train()
    images, labels = next(iter(session.data.train.epoch(0)))
    loop.train_step(session, phase, wrapped, images, labels)  # optimizers make their state
    with NoLooking():
        phase.before_step()
        for rated in phase.optimizers:
            rated.set_rate(0.1)
        done = loop.train_step(session, phase, wrapped, images, labels)
    assert [len(part) for part in done] == [3, 2]


def test_clipping_is_of_the_weights_alone(tmp_path: Path) -> None:
    session, gated = make_session(tmp_path, search__warmup=0.0, search__clip_norm=1e-6, penalty__weight=1e-3)
    phase = SearchPhase(session, gated)
    phase.before_step()
    wrapped = loop.prepare_phase(session.accelerator, phase).train()
    images, labels = next(iter(session.data.train.epoch(0)))
    norms: dict[str, float] = {}
    for rated in phase.optimizers:
        rated.set_rate(0.0)

        def zero_grad(rated: Any = rated, **_: Any) -> None:
            gradients = [p.grad for group in rated.optimizer.param_groups for p in group["params"]]
            norms[rated.name] = float(torch.stack([g.norm() for g in gradients]).norm())

        rated.optimizer.zero_grad = zero_grad
    loop.train_step(session, phase, wrapped, images, labels)
    assert norms["weight"] <= 1.01e-6
    assert norms["gate"] > 1e-5


def test_fine_tuning_a_gated_network_leaves_the_gates_alone(tmp_path: Path) -> None:
    session, gated = make_session(tmp_path, finetune__gated=True, finetune__epochs=1)
    gates = torch.tensor([1.0, 0.0] * 7)
    gated.fix_gates(gates)
    before = {name: value.clone() for name, value in gated.generator.state_dict().items()}
    weight = gated.host.conv1.weight.clone()
    finetune(session, gated, gated.host)
    assert torch.equal(gated.evaluation_gates(), gates)
    assert all(torch.equal(value, before[name]) for name, value in gated.generator.state_dict().items())
    assert not torch.equal(gated.host.conv1.weight, weight)


# -- when it stops ---------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_says_at_which_step(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        model__spec="tests.networks.tiny:ScoresThatExplode", run__checkpoint_minutes=0, search__warmup=0.0
    )
    with pytest.raises(
        TrainingError, match=r"the loss became (nan|inf) by step 6 \(search, epoch 2, learning rate .*\)"
    ) as caught:
        run(recipe, tmp_path / "run")
    assert "weight_optimizer.lr" in str(caught.value)
    found = load_newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    step, state = found
    assert step == 3
    assert all(bool(value.isfinite().all()) for value in state["model"].values())


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    recipe = tiny_recipe(weight_optimizer__lr=1e39, search__epochs=1, data__batch_size=48, run__checkpoint_minutes=0)
    with pytest.raises(TrainingError, match=r"became (nan|inf) by step 1 \(search, epoch 1, learning rate"):
        run(recipe, tmp_path / "run")
    assert load_newest(tmp_path / "run" / "checkpoints") is None


def test_weights_so_large_that_importance_is_no_number(tmp_path: Path) -> None:
    recipe = tiny_recipe(weight_optimizer__lr=1e36, search__epochs=1, data__batch_size=48)
    with pytest.raises(TrainingError, match="first scores of the gates are not finite at step 1"):
        run(recipe, tmp_path / "run")


def test_an_interrupt_does_not_save_a_loss_that_is_no_number(tmp_path: Path) -> None:
    recipe = tiny_recipe(model__spec="tests.networks.tiny:ScoresThatExplode", data__batch_size=4, search__warmup=0.0)
    with pytest.raises(TrainingError, match=r"the loss became .* by step 8"):
        run(recipe, tmp_path / "run", Noisy(at_step=8, act=interrupt))
    assert load_newest(tmp_path / "run" / "checkpoints") is None


# -- what is written down --------------------------------------------------------------------------------------------


def test_metrics_are_means_over_all_images(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        weight_optimizer__lr=1e-12, search__epochs=1, search__warmup=0.9, search__ramp=0.1, finetune__epochs=0
    )
    run(recipe, tmp_path / "run")
    line, freezing = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert (line["epoch"], freezing["event"]) == (1, "freezing")
    torch.manual_seed(recipe.run.seed)
    host = TinyNet().train()
    host.dropout.p = 0.0
    accelerator = make_accelerator(recipe)
    data = open_data_for(recipe, accelerator.device)
    with torch.no_grad():
        losses = [float(F.cross_entropy(host(images), labels)) for images, labels in data.train.epoch(0)]
    assert line["loss"] == pytest.approx(sum(losses) / 3, abs=0.1)  # dropout
    assert math.isclose(line["train_accuracy"] * 48 / 100 % 1, 0, abs_tol=1e-4)


def test_mixed_precision_leaves_no_trace_on_the_network(tmp_path: Path) -> None:
    session, gated = make_session(tmp_path, run__precision="bf16", finetune__epochs=1)
    compact = gated.extract()
    finetune(session, compact, compact)
    assert "forward" not in vars(compact)
    assert not any("accelerate" in name or "original" in name for name in vars(compact))
    assert session.accelerator._models == []
    assert session.accelerator._optimizers == []
