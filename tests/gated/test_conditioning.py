"""Groups that are fed on gates instead of log α: what is drawn is what the next group saw."""

from __future__ import annotations

import pytest
import torch
from tests.networks.tiny import tiny_gated

from depl0.errors import InputError
from depl0.gates import hard_concrete
from depl0.gates.generators import GENERATORS, make_generator

pytestmark = pytest.mark.usefixtures("remembered_plans")

DEPENDENT = sorted(set(GENERATORS) - {"bias", "independent"})


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_generator_fed_on_gates_starts_where_it_is_told(name: str, direction: str) -> None:
    generator = make_generator(name, [4, 6, 5], direction=direction, conditioning="gates", start=4.0)
    torch.testing.assert_close(generator().detach(), torch.full((15,), 4.0))
    wanted = torch.linspace(1.0, 5.0, 15)  # evaluation gates are not all one, so only nearly so
    generator.start_from(wanted)
    open_gates = generator.on_gates(lambda _, log_alpha: torch.ones_like(log_alpha)).detach()
    torch.testing.assert_close(open_gates, wanted)


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


def test_in_evaluation_mode_nothing_is_random() -> None:
    gated = tiny_gated(generator="fc", conditioning="gates").eval()
    images = torch.randn(2, 1, 6, 6)
    assert torch.equal(gated(images), gated(images))
    assert torch.equal(gated.log_alpha(), gated.log_alpha())
    assert torch.equal(gated.evaluation_gates(), hard_concrete.evaluation_gates(gated.log_alpha()))


def test_the_penalty_is_that_of_a_sample() -> None:
    gated = tiny_gated(generator="fc", conditioning="gates", start=0.0).train()
    with torch.no_grad():
        for parameter in gated.gate_parameters():
            parameter.mul_(100.0)
    torch.manual_seed(0)
    values = {float(gated.penalty().detach()) for _ in range(8)}
    assert len(values) > 1
    gated.eval()
    assert len({float(gated.penalty().detach()) for _ in range(8)}) == 1


def test_an_unknown_conditioning_is_refused() -> None:
    with pytest.raises(InputError, match="'log_alpha', 'gates'"):
        tiny_gated(conditioning="weights")
