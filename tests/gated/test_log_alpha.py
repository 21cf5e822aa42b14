"""log α within a step: the penalty uses those of the call before it, and groups may be fed on gates instead."""

import copy

import pytest
import torch
from tests.networks.tiny import tiny_gated
from torch import Tensor, nn

import depl0
from depl0.gated import GatedModel
from depl0.gates.generators import GENERATORS, make_generator


@pytest.fixture
def gated() -> GatedModel:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3))
    return depl0.attach(host, torch.zeros(1, 1, 8, 8), generator="fc").train()


def gradients(gated: GatedModel) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in gated.gate_parameters() if parameter.grad is not None]


def expected(gated: GatedModel) -> Tensor:
    """Return the penalty of the current parameters, from a copy that has not been called."""
    return copy.deepcopy(gated).penalty("macs").detach()


def step(gated: GatedModel, with_call: bool) -> tuple[Tensor, list[Tensor]]:
    gated.zero_grad()
    outputs = gated(torch.ones(1, 1, 8, 8)) if with_call else torch.zeros(1)
    penalty = gated.penalty("macs")
    (penalty + 0 * outputs.sum()).backward()
    return penalty.detach(), gradients(gated)


def test_value_and_gradient_are_those_of_a_penalty_alone(gated: GatedModel) -> None:
    value, gradient = step(gated, with_call=True)
    alone, gradient_alone = step(gated, with_call=False)
    assert torch.equal(value, alone) and len(gradient) == len(gradient_alone) > 0
    for one, other in zip(gradient, gradient_alone, strict=True):
        torch.testing.assert_close(one, other)


def update_in_place(gated: GatedModel) -> None:
    torch.optim.SGD(gated.gate_parameters(), lr=1.0).step()


def load(gated: GatedModel) -> None:
    gated.load_state_dict({name: value + 0.3 for name, value in gated.state_dict().items()})


@pytest.mark.parametrize("change", [update_in_place, load])
def test_is_computed_again_after_a_change(gated: GatedModel, change: object) -> None:
    assert callable(change)
    step(gated, with_call=False)  # gives the optimizer gradients
    gated(torch.ones(1, 1, 8, 8))
    before = gated.penalty("macs").detach()
    change(gated)
    after = gated.penalty("macs").detach()
    assert after != before and torch.equal(after, expected(gated))


def test_moves_with_the_threshold_and_with_removed_gates() -> None:
    host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
    gated = depl0.attach(host, torch.zeros(1, 1, 8, 8), generator="fc", budget=0.5).train()
    gated(torch.ones(1, 1, 8, 8))
    before, threshold = gated.penalty("macs").detach(), gated.threshold
    assert threshold is not None
    threshold.advance(1.0, ramp=0.0)
    gated.follow_budget()
    assert (moved := gated.penalty("macs").detach()) != before and torch.equal(moved, expected(gated))
    gated(torch.ones(1, 1, 8, 8))
    gated.remove(torch.arange(8) < 4)
    assert gated.penalty("macs") < moved
    gated.cut()
    assert torch.equal(gated.penalty("macs").detach(), expected(gated))


def test_the_gradient_is_there_after_a_call_without_gradients(gated: GatedModel) -> None:
    with torch.no_grad():
        gated(torch.ones(1, 1, 8, 8))
    gated.penalty("macs").backward()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(gated)) and gradients(gated)


DEPENDENT = sorted(set(GENERATORS) - {"bias", "independent"})


@pytest.mark.parametrize("name", DEPENDENT)
def test_the_gates_of_a_group_change_the_next_one(name: str) -> None:
    generator = make_generator(name, [4, 6], conditioning="gates", rng=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.3)
    closed = generator.on_gates(lambda _, log_alpha: torch.zeros_like(log_alpha)).detach()
    opened = generator.on_gates(lambda _, log_alpha: torch.ones_like(log_alpha)).detach()
    assert torch.equal(closed[:4], opened[:4])
    assert not torch.equal(closed[4:], opened[4:])


@pytest.mark.parametrize("budget", [None, 0.5])
def test_the_gates_that_multiply_are_those_that_were_fed(budget: float | None) -> None:
    gated = tiny_gated(generator="fc", conditioning="gates", budget=budget).train()
    with torch.no_grad():
        for parameter in gated.gate_parameters():
            parameter.add_(torch.randn(parameter.shape))
    if gated.threshold is not None:
        gated.threshold.advance(0.6, 0.5)
        gated.threshold.solve(gated.generator())
    fed: dict[int, torch.Tensor] = {}
    walk = gated.generator.on_gates

    def watch(draw):  # type: ignore[no-untyped-def]
        def drawn(group: int, scores: torch.Tensor) -> torch.Tensor:
            fed[group] = draw(group, scores)
            return fed[group]

        return walk(drawn)

    gated.generator.on_gates = watch  # type: ignore[method-assign]
    gates = gated._gates((), {})
    first = gated.plan.groups[0].gates
    assert torch.equal(fed[0].detach(), gates[first].detach())
    assert gates.requires_grad
