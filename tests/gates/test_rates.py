"""The same pull on every gate moves it equally far, whatever generates it."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.networks.tiny import tiny_gated

from depl0.errors import InputError
from depl0.gates.generators import GENERATORS, BoundedGenerator, make_generator
from depl0.gates.rates import first_scores_alike, rates_to_travel

pytestmark = pytest.mark.usefixtures("remembered_plans")

SIZES = (4, 6, 3)
BOUNDED = sorted(name for name, made in GENERATORS.items() if issubclass(made, BoundedGenerator))


def travelled(generator: BoundedGenerator, rate: float, steps: int) -> float:
    """Pull every gate down alike for a whole search; return how far they went on average."""
    start = float(generator().detach().mean())
    adam = torch.optim.Adam(generator.parameters(), lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        generator().sum().backward()
        adam.step()
    return start - float(generator().detach().mean())


@pytest.mark.parametrize("travel", [8.0, 4.0])
@pytest.mark.parametrize("name", BOUNDED)
def test_all_generators_travel_equally_far(name: str, travel: float) -> None:
    generator = make_generator(name, SIZES, rng=torch.Generator().manual_seed(0))
    assert isinstance(generator, BoundedGenerator)
    if travel == 4.0:  # as with a budget
        generator.start_from(torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(1)))
    steps = 60
    rate = rates_to_travel(generator, travel, steps) / steps
    assert travelled(generator, rate, steps) == pytest.approx(travel, rel=0.1)


def test_free_gates_have_the_rate_that_they_always_had() -> None:
    gated = tiny_gated(generator="independent")
    weights, gates = gated.parameter_groups(lr=0.3, steps=100, weight_decay=0.1)
    assert (weights["lr"], weights["weight_decay"]) == (0.3, 0.1)
    assert (gates["lr"], gates["weight_decay"]) == (8.0 / 100, 0.0)
    assert "weight_decay" not in gated.parameter_groups(lr=0.3, steps=100)[0]  # the optimizer's own
    with pytest.raises(InputError, match="steps must be at least 0, got -1"):
        gated.parameter_groups(lr=0.3, steps=-1)


def test_a_budget_starts_from_its_scores_and_the_generator_is_left_alone() -> None:
    gated = tiny_gated(generator="fc", budget=0.5)
    before = copy.deepcopy(gated.generator.state_dict())
    rate = gated.parameter_groups(lr=0.1, steps=100)[1]["lr"]
    assert all(torch.equal(value, before[name]) for name, value in gated.generator.state_dict().items())
    generator = gated.generator
    assert isinstance(generator, BoundedGenerator)
    generator.start_from(first_scores_alike(gated.plan.num_gates))
    assert travelled(generator, rate, 100) == pytest.approx(4.0, rel=0.1)
