"""Selected gates: the budget is kept, and everything that it forced is counted."""

from __future__ import annotations

import pytest
import torch

from depl0.errors import GateError, InputError
from depl0.gated import GatedModel, attach
from depl0.select.gates import Selection, check_budget, minimum_share, select_gates
from tests.networks.golden import TinyDigits
from tests.networks.tiny import tiny_gated

pytestmark = pytest.mark.usefixtures("remembered_plans")

BUDGETS = [0.9, 0.5, 0.2]


def with_log_alpha(values: torch.Tensor | float, **options: object) -> GatedModel:
    gated = tiny_gated(generator="independent", **options)
    flat = torch.as_tensor(values, dtype=torch.float32).expand(gated.plan.num_gates)
    gated.generator.start_from(flat)
    return gated


def frozen_at(gated: GatedModel, budget: float | None, of: str = "macs", **changes: object) -> Selection:
    """Select the gates as freezing does, and fix them."""
    gated.free_gates()
    selection = select_gates(gated.snapshot(), gated.config.changed(budget=budget, of=of, **changes))
    gated.fix_gates(selection.gates)
    return selection


def random_log_alpha(seed: int, mean: float = 2.0) -> torch.Tensor:
    return torch.randn(14, generator=torch.Generator().manual_seed(seed)) * 2 + mean


@pytest.mark.parametrize("of", ["macs", "params"])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", range(2))
def test_the_budget_is_kept_and_used(budget: float, of: str, seed: int) -> None:
    gated = with_log_alpha(random_log_alpha(seed, mean=4.0))
    frozen = frozen_at(gated, budget, of)
    share = gated.snapshot().share(frozen.gates > 0, of)
    assert share <= budget
    closed = (frozen.gates == 0).nonzero().flatten().tolist()
    for gate in closed:  # no room for another one
        more = frozen.gates.clone()
        more[gate] = 1
        assert gated.snapshot().share(more > 0, of) > budget
    assert torch.equal(gated.evaluation_gates(), frozen.gates)
    kept = gated.kept_cost()
    assert (kept.macs if of == "macs" else kept.params) <= budget * getattr(gated.dense_cost, of)


def test_where_the_search_closed_more_the_best_are_opened_again() -> None:
    log_alpha = torch.linspace(-9.0, -5.0, 14)
    gated = with_log_alpha(log_alpha)
    frozen = frozen_at(gated, 0.5, "macs")
    assert frozen.forced == 0
    assert set(frozen.gates.tolist()) == {0.0, 1.0}
    assert 0.3 < gated.snapshot().share(frozen.gates > 0, "macs") <= 0.5
    assert bool((frozen.gates[-3:] == 1).all())


@pytest.mark.parametrize("rule", ["median", "paper"])
def test_without_a_budget_they_are_the_evaluation_gates(rule: str) -> None:
    gated = with_log_alpha(random_log_alpha(3, mean=0.0), evaluation=rule)
    wanted = gated.evaluation_gates()
    frozen = frozen_at(gated, None, "macs")
    assert frozen.forced == 0
    assert torch.equal(frozen.gates, wanted)
    assert 0 < int((wanted > 0).sum()) < len(wanted)
    gated.generator.start_from(torch.full((14,), 3.0))
    assert torch.equal(gated.evaluation_gates(), wanted)  # fixed


@pytest.mark.parametrize("of", ["macs", "params"])
def test_the_least_possible_can_be_asked_for_and_less_cannot(of: str) -> None:
    gated = with_log_alpha(5.0)
    least = minimum_share(gated.snapshot(), gated.config.changed(of=of))
    check_budget(gated.snapshot(), gated.config.changed(budget=least, of=of))
    frozen = frozen_at(gated, least, of)
    assert gated.snapshot().share(frozen.gates > 0, of) == pytest.approx(least)
    with pytest.raises(InputError, match=rf"unprunable layers account for {least:.3f}") as caught:
        check_budget(gated.snapshot(), gated.config.changed(budget=least * 0.99, of=of))
    hinted = float(caught.value.hint.split("at least ")[1].split(",")[0].rstrip("."))  # type: ignore[union-attr]
    assert least <= hinted <= least + 0.011


@pytest.mark.parametrize("remove_blocks", [False, True])
def test_closed_group_of_a_residual_branch_may_stay_closed(remove_blocks: bool) -> None:
    images = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    gated = attach(TinyDigits(), images, generator="independent")
    names = [group.name for group in gated.plan.groups]
    assert names == ["stem", "first.conv1", "second.conv1"]
    scores = torch.full((gated.plan.num_gates,), 4.0)
    for name, low in (("stem", -3.0), ("first.conv1", -4.0)):  # the network can do without the second of them only
        scores[gated.plan.groups[names.index(name)].gates] = low
    gated.generator.start_from(scores)
    frozen = frozen_at(gated, 0.2, remove_blocks=remove_blocks)
    left = {group.name: bool((frozen.gates[group.gates] > 0).any()) for group in gated.plan.groups}
    assert left == {"stem": True, "first.conv1": not remove_blocks, "second.conv1": True}
    assert gated.snapshot().share(frozen.gates > 0, "macs") <= 0.2


def worthless(name: str) -> GatedModel:
    """A network in which one group's gates score far below all others."""
    gated = with_log_alpha(4.0)
    scores = torch.full((gated.plan.num_gates,), 4.0)
    scores[next(group.gates for group in gated.plan.groups if group.name == name)] = -4.0
    gated.generator.start_from(scores)
    return gated


@pytest.mark.parametrize("round_to", [1, 2])
@pytest.mark.parametrize("budget", [0.5, None])
def test_every_group_keeps_its_least_share(budget: float | None, round_to: int) -> None:
    name = tiny_gated().plan.groups[0].name
    gated = worthless(name)
    (group,) = (group for group in gated.plan.groups if group.name == name)
    without = frozen_at(gated, budget, round_to=round_to)
    assert int((without.gates[group.gates] > 0).sum()) < group.size / 2
    kept = frozen_at(worthless(name), budget, round_to=round_to, min_share=0.5)
    for each in gated.plan.groups:
        assert int((kept.gates[each.gates] > 0).sum()) >= each.size / 2
    assert budget is None or gated.snapshot().share(kept.gates > 0, "macs") <= budget


def test_a_budget_and_a_least_share_that_cannot_both_be_met() -> None:
    with pytest.raises(InputError, match=r"min_share=0.9 account for .*\nhint: .*lower min_share"):
        tiny_gated(budget=0.3, min_share=0.9)
    with pytest.raises(GateError, match=r"budget of 0.3 of the macs and min_share=0.9 cannot both be met"):
        frozen_at(worthless(tiny_gated().plan.groups[0].name), 0.3, min_share=0.9)
