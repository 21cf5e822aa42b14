"""How many multiples every group keeps: against brute force, and against any step that would still fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import depl0
from depl0.costs.terms import PairwiseCost
from depl0.select.gates import minimum_share, select_gates
from depl0.select.knapsack import Knapsack, solve
from depl0.select.rounding import gate_values, round_within
from tests.networks.mixed import given_scores


def random_problem(seed: int, choices: int, groups: int = 4) -> Knapsack:
    """Layers in a chain with a few shortcuts: what each pair costs is in proportion to both widths."""
    draw = np.random.default_rng(seed)
    widths = np.arange(1, choices + 1, dtype=float)
    values = tuple(np.sort(draw.exponential(size=choices))[::-1].cumsum() * draw.uniform(0.3, 3) for _ in range(groups))
    pairs: tuple[dict[int, np.ndarray], ...] = tuple({} for _ in range(groups))
    for g, h in itertools.combinations(range(groups), 2):
        if h == g + 1 or draw.random() < 0.2:
            pairs[g][h] = draw.uniform(0.2, 2) * np.outer(widths, widths)
            pairs[h][g] = pairs[g][h].T
    tables = PairwiseCost(1.0, tuple(draw.uniform(0, 1) * widths for _ in range(groups)), pairs)
    whole = Knapsack(values, tables, float("inf"))
    dense, least = whole.cost([choices - 1] * groups), whole.cost([0] * groups)
    return Knapsack(values, tables, least + draw.uniform(0.02, 0.9) * (dense - least))


@pytest.mark.parametrize("seed", range(10))
def test_nearly_as_good_as_brute_force(seed: int) -> None:
    problem = random_problem(seed, choices=(choices := 3 + seed % 3))
    places = itertools.product(range(choices), repeat=len(problem.values))
    best = max(problem.value(list(each)) for each in places if problem.cost(list(each)) <= problem.budget)
    found = solve(problem, [0] * len(problem.values))
    assert found is not None and problem.cost(found) <= problem.budget
    assert 0.99 * best <= problem.value(found) <= best * (1 + 1e-12)


class Stack(nn.Module):
    """Convolutions in a chain, with a shortcut around one of them."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = itertools.pairwise([2, *widths])
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 1 + 2 * (n % 2), padding=n % 2) for n, (before, after) in enumerate(pairs)
        )
        self.beside = nn.Conv2d(widths[-1], widths[-1], 1)
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head((x + self.beside(x)).mean((2, 3)))


@given(
    st.lists(st.integers(3, 12), min_size=1, max_size=3),
    st.sampled_from([2, 3, 4]),
    st.floats(0.05, 1.0),
    st.integers(0, 10_000),
)
@example(widths=[5, 3], round_to=3, budget=0.5, seed=0)  # the smallest choice, at exactly its own share
@settings(max_examples=15)
def test_the_rounded_choice_of_a_small_network_is_nearly_the_best(
    widths: list[int], round_to: int, budget: float, seed: int
) -> None:
    """Compare with all choices, counted one by one."""
    torch.manual_seed(seed)
    gated = depl0.attach(Stack(widths).eval(), torch.randn(1, 2, 4, 4), generator="independent")
    plan, scores = gated.plan, torch.randn(gated.plan.num_gates)
    numbers = [set(range(round_to, group.size + 1, round_to)) | {group.size} for group in plan.groups]
    network, config = gated.snapshot(), gated.config.changed(round_to=round_to)
    config = config.changed(budget=max(budget, minimum_share(network, config)))
    budget = config.budget
    unrounded = select_gates(network, config.changed(round_to=1), scores).gates > 0
    found = round_within(network, config, scores, unrounded)
    value = {}
    worth = gate_values(network, config, scores, unrounded)
    for counts in itertools.product(*numbers):
        kept = torch.zeros_like(unrounded)
        for group, count in zip(plan.groups, counts, strict=True):
            opened = unrounded[group.gates].double() * 1e6  # whatever is open comes first
            kept[(scores[group.gates] + opened).argsort(descending=True)[:count] + group.offset] = True
        if gated.snapshot().share(kept, "macs") <= budget:
            value[counts] = float(worth[kept].sum())
    assert 0.97 * max(value.values()) <= float(worth[found].sum()) <= max(value.values()) * (1 + 1e-9)
    assert gated.snapshot().share(found, "macs") <= budget


@pytest.mark.parametrize("seed", range(3))
def test_nothing_more_fits_into_a_rounded_network(seed: int) -> None:
    gated = given_scores(seed)
    scores, round_to, budget = gated.log_alpha().detach(), 4, 0.3 + 0.2 * seed
    network, config = gated.snapshot(), gated.config.changed(round_to=round_to, budget=budget)
    assert budget > minimum_share(network, config)
    unrounded = select_gates(network, config.changed(round_to=1), scores).gates > 0
    found = round_within(network, config, scores, unrounded)
    for group in gated.plan.groups:
        more = found.clone()
        closed = [gate for gate in scores[group.gates].argsort(descending=True).tolist() if not more[group.gates][gate]]
        step = 2 if "grouped" in group.layers else round_to
        more[torch.tensor(closed[:step], dtype=torch.long) + group.offset] = True
        assert not closed or gated.snapshot().share(more, "macs") > budget, group.name
