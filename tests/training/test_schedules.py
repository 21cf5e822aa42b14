"""Learning rates against their closed forms."""

from __future__ import annotations

import math

import pytest

from depl0.app.recipes import catalog
from depl0.app.training.optimizers import Schedule, finetune_optimizer, search_optimizers, weight_optimizer
from tests.networks.tiny import TinyNet, tiny_gated, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.mark.parametrize("epoch", [0, 0.5, 3.25, 9.99, 10, 12])
def test_shapes(epoch: float) -> None:
    passed = min(epoch / 10, 1)
    assert Schedule("constant", 10)(epoch) == 1
    assert Schedule("cosine", 10)(epoch) == pytest.approx((1 + math.cos(math.pi * passed)) / 2)
    assert Schedule("step", 10, (3, 10), 0.2)(epoch) == pytest.approx(0.2 ** ((epoch >= 3) + (epoch >= 10)))


def test_warm_up_is_a_straight_line_from_nearly_nothing() -> None:
    rate = Schedule("constant", 10, warmup_epochs=2)
    assert rate(0) < 1e-3
    assert rate(1) == pytest.approx(0.5, abs=1e-3)
    assert [rate(2), rate(9)] == [1, 1]


def test_a_search_of_no_epochs_has_rates() -> None:
    assert Schedule("cosine", 0)(0) == 1


def test_both_optimizers_follow_the_papers_milestones() -> None:
    recipe, gated = catalog.get("resnet56-cifar10"), tiny_gated()
    weights, gates = search_optimizers(recipe, gated, steps_per_epoch=390)
    expected = {0: (0.1, 1e-3), 59.99: (0.1, 1e-3), 60: (0.01, 2e-4), 130: (1e-3, 4e-5), 299: (1e-5, 1.6e-6)}
    for epoch, rates in expected.items():
        for rated in (weights, gates):
            rated.set_rate(epoch)
        found = [rated.optimizer.param_groups[0]["lr"] for rated in (weights, gates)]
        assert found == pytest.approx(rates)


def test_only_weights_have_weight_decay() -> None:
    recipe, gated = catalog.get("vgg16-cifar10"), tiny_gated()
    weights, gates = search_optimizers(recipe, gated, steps_per_epoch=1)
    assert [group["weight_decay"] for group in weights.optimizer.param_groups] == [5e-4]
    assert [group["weight_decay"] for group in gates.optimizer.param_groups] == [0]
    in_weights = {id(p) for group in weights.optimizer.param_groups for p in group["params"]}
    in_gates = {id(p) for group in gates.optimizer.param_groups for p in group["params"]}
    assert in_weights == {id(p) for p in gated.host.parameters()}
    assert in_gates == {id(p) for p in gated.generator.parameters()}


@pytest.mark.parametrize("target", [{"gates__budget": 0.5}, {"penalty__weight": 1e-6}])
@pytest.mark.parametrize("generator", ["fc", "independent"])
def test_a_search_twice_as_long_has_half_the_gate_rate(target: dict[str, float], generator: str) -> None:
    gated = tiny_gated(generator=generator, budget=target.get("gates__budget"))
    rates = {}
    for epochs in (5, 10):
        recipe = tiny_recipe(search__epochs=epochs, gates__generator=generator, **target)
        rates[epochs] = search_optimizers(recipe, gated, 7)[1].lr
    assert rates[5] == pytest.approx(2 * rates[10], rel=0.1 if generator == "fc" else 1e-6)  # Adam takes a few steps
    explicit = tiny_recipe(gate_optimizer__lr=0.5, gates__generator=generator)
    assert search_optimizers(explicit, gated, 7)[1].lr == 0.5


def test_fine_tuning_has_its_own_rate() -> None:
    weights = list(TinyNet().parameters())
    by_default = finetune_optimizer(tiny_recipe(finetune__lr="none", weight_optimizer__lr=0.2), weights)
    assert by_default.lr == pytest.approx(0.02)
    assert by_default.optimizer.param_groups[0]["weight_decay"] == 5e-4
    assert finetune_optimizer(tiny_recipe(finetune__lr=0.3), weights).lr == 0.3
    assert weight_optimizer(tiny_recipe(), weights, 3).optimizer.param_groups[0]["nesterov"] is True
