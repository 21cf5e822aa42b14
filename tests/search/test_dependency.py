"""How much of log α comes from other groups, and how many gates turn on it."""

from __future__ import annotations

import pytest
import torch

from depl0.gates.generators import GENERATORS, make_generator
from depl0.gates.generators.dependency import parts, spread_share
from depl0.gates.generators.fc import FC
from depl0.search.dependency import measure_dependency
from depl0.search.freezing import freeze_network
from tests.networks.tiny import tiny_gated

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.mark.parametrize("conditioning", ["log_alpha", "gates"])
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_the_parts_add_up(name: str, conditioning: str) -> None:
    rng = torch.Generator().manual_seed(0)
    generator = make_generator(name, [3, 4, 2], "backward", "paper", rng=rng, conditioning=conditioning)
    found = parts(generator)
    if name in ("independent", "independent-fc"):
        assert found is None
        return
    assert found is not None
    torch.testing.assert_close(found.scores(), generator().detach())
    torch.testing.assert_close(found.alone(), torch.tanh(found.own) * generator.preset.bound)


def test_the_share_of_the_spread() -> None:
    generator = make_generator("fc", [4, 4])
    assert isinstance(generator, FC)
    with torch.no_grad():
        for layer in generator.layers:
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor([0.0, 0.1, 0.2, 0.3]))
        nothing = parts(generator)
        assert nothing is not None and spread_share(generator, nothing) == 0.0
        for layer in generator.layers:
            layer.weight.copy_(layer.bias.unsqueeze(1).expand(4, 4))  # W·x is as large as b for x = 1: half of the sum
        first = parts(generator)
        assert first is not None
        assert torch.allclose(first.from_groups[:4], first.own[:4])
        share = spread_share(generator, first)
    assert share is not None and 0.2 < share < 0.5  # a half in the first group, less in the second


def test_the_gates_that_would_differ() -> None:
    assert measure_dependency(tiny_gated(generator="independent", budget=0.5)) is None
    gated = tiny_gated(generator="fc", budget=0.5)
    generator, budget = gated.generator, gated.engine.threshold
    assert isinstance(generator, FC) and budget is not None
    budget.advance(1.0, 0.5)
    gated.engine.start_from(torch.linspace(-1, 1, 14))
    before = budget.shift.clone()
    found = measure_dependency(gated)
    assert found is not None and found.gates_that_differ == 0 and found.gates == 14
    with torch.no_grad():  # the last group's order is now decided by its inputs alone
        generator.layers[1].weight.copy_(8 * torch.linspace(1, -1, 8).unsqueeze(1).expand(8, 6))
    changed = measure_dependency(gated)
    assert changed is not None and found.spread_share is not None and changed.spread_share is not None
    assert changed.gates_that_differ > 0 and changed.spread_share > found.spread_share
    assert torch.equal(budget.shift, before)
    freeze_network(gated)
    assert measure_dependency(gated) is None


def test_fed_on_gates_the_threshold_says_which_are_open() -> None:
    """All scores are above where gates close without a budget; the budget closes half of the first group."""
    gated = tiny_gated(generator="fc", budget=0.5, conditioning="gates")
    generator, budget = gated.generator, gated.engine.threshold
    assert isinstance(generator, FC) and budget is not None
    with torch.no_grad():
        for layer in generator.layers:
            layer.weight.zero_()
        generator.layers[1].weight.copy_(0.6 * torch.tensor([1.0, -1.0] * 4).unsqueeze(1).expand(8, 6))
        scores = torch.cat([torch.linspace(-1, 1, 6), torch.zeros(8)])
        for layer, wanted in zip(generator.layers, scores.split([6, 8]), strict=True):
            layer.bias.copy_(torch.atanh(wanted / generator.preset.bound))
        budget.sharpness.fill_(100.0)
        for shift, mean in ((-2.0, 1.0), (0.0, 0.0), (2.0, -1.0)):  # gates as ±1: all open, half of them, none
            budget.shift.fill_(shift)
            found = parts(generator, gated.engine.gates_of_group)
            assert found is not None
            torch.testing.assert_close(found.from_groups[6:], 0.6 * mean * torch.tensor([1.0, -1.0] * 4))
            measured = measure_dependency(gated)
            assert measured is not None and measured.spread_share is not None
            assert measured.spread_share == pytest.approx(spread_share(generator, found))
            assert (measured.spread_share > 0.1) == (mean != 0)
