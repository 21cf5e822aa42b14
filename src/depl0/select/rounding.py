"""Numbers of channels that hardware likes: kept channels of every group as a multiple of N.

Vector units and matrix kernels work on 8, 16 or 32 channels at a time; what is left over costs as much as a whole step.
So each group keeps a multiple of N of its channels, or all of them; the best by their scores. How many multiples each
group keeps within a budget is a knapsack (:mod:`depl0.select.knapsack`): scores are worth for cost on a logarithmic
scale, so a gate with score s is worth price·exp(s), at the prices of the network that the scores alone would choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from depl0.analysis.plan import Group, Plan
from depl0.costs.terms import CostTerms, pairwise
from depl0.errors import GateError, InputError
from depl0.select.enumeration import best_of_all, can_try_all
from depl0.select.knapsack import CalledCosts, Costs, Knapsack, PairwiseCosts, Places, improve
from depl0.select.relaxation import relax

TRIES = 8
"""times that a budget is lowered because the terms missed something"""

RoundTo: TypeAlias = int | Literal["auto"]
AUTO: Literal["auto"] = "auto"
"""asks the device (:mod:`depl0.latency.multiples`)"""


@dataclass(frozen=True)
class Within:
    """A budget, and what gates cost."""

    budget: float
    share: Callable[[Tensor], float]
    """the share of the dense cost that a network with these gates open has"""
    price: Callable[[Tensor], Tensor]
    """what every gate adds to the cost, where these are open"""
    terms: CostTerms | None = None
    """the cost as terms, where it has them"""
    dense: float = 1.0
    """the dense cost in the units of ``terms``"""


def check_round_to(round_to: object) -> None:
    """Refuse what is no number of channels."""
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise InputError(
            f"round_to must be a whole number of at least 1, got {round_to!r} instead.",
            hint="8, 16 or 32 channels suit most hardware; 1 rounds nothing; attach and recipes also take 'auto'.",
        )


def round_gates(
    plan: Plan,
    is_open: Tensor,
    scores: Tensor,
    round_to: int,
    within: Within | None = None,
    *,
    may_vanish: bool = False,
    gone: Tensor | None = None,
) -> Tensor:
    """Return which gates are open when every group's channels are a multiple of ``round_to``, or all of the group.

    Args:
        plan: the groups.
        is_open: which gates are open now.
        scores: the order within a group, and which group's gates are worth more.
        round_to: N. A group of fewer channels keeps all of them; no other keeps fewer than N.
        within: the budget; without one, every group goes to the nearest multiple.
        may_vanish: leave groups alone whose gates are all closed, because their layers are going to be removed.
        gone: gates that cannot be opened any more.
    """
    if within is not None:
        return round_within(plan, is_open, scores, round_to, within, may_vanish=may_vanish, gone=gone).is_open
    ladders = _ladders(plan, is_open, scores, round_to, may_vanish, gone)
    return _chosen(ladders, [ladder.nearest for ladder in ladders], is_open)


@dataclass(frozen=True)
class Rounded:
    """Gates that were chosen within a budget, and how well."""

    is_open: Tensor
    value: float
    bound: float | None
    """no rounded gates within the budget are worth more; None where that is not known"""


def round_within(
    plan: Plan,
    is_open: Tensor,
    scores: Tensor,
    round_to: int,
    within: Within,
    *,
    may_vanish: bool = False,
    gone: Tensor | None = None,
) -> Rounded:
    """Return the rounded gates that are worth the most within a budget, and a bound on what any are worth.

    Up to some millions of choices the best is exact, and the bound its value; beyond, as far as exchanges find it.
    """
    ladders = _ladders(plan, is_open, scores, round_to, may_vanish, gone)
    worth = _worth(scores, torch.ones_like(is_open) if gone is None else ~gone, within.price(is_open))
    values = tuple(worth[ladder.order].cumsum(0)[torch.tensor(ladder.rungs) - 1].numpy() for ladder in ladders)
    costs, budget = _costs(within, ladders, is_open), _largest_cost(within)
    for _ in range(TRIES):
        problem = Knapsack(values, costs, budget)
        places, bound = _solved(problem, [ladder.nearest for ladder in ladders])
        if places is None:
            break
        chosen = _chosen(ladders, places, is_open)
        over = within.share(chosen) - within.budget
        if over <= 0:
            return Rounded(chosen, problem.value(places), bound)
        budget -= 1.01 * over * within.dense  # some layer keeps a channel that the terms do not know of
    raise GateError(
        "no choice of rounded channels keeps the budget: every group is down to its smallest number already.",
        hint="ask for a larger budget, or round to fewer channels.",
    )


def _largest_cost(within: Within) -> float:
    """Return the budget in the units of the terms.

    Share times dense cost may fall short of the whole number that it is the share of, by a rounding error.
    """
    cost = within.budget * within.dense
    whole = float(round(cost))
    return max(cost, whole) if whole / within.dense <= within.budget else cost


def _solved(problem: Knapsack, start: Places) -> tuple[Places | None, float | None]:
    """Return the best choices, or nearly the best where there are too many to try, and a bound on their value."""
    if can_try_all(problem):
        places = best_of_all(problem)
        return places, None if places is None else problem.value(places)
    relaxed = relax(problem)
    return improve(problem, [start, *(relaxed.places if relaxed else ())]), relaxed.bound if relaxed else None


def in_whole_steps(plan: Plan, going: Tensor, gone: Tensor, scores: Tensor, round_to: int) -> Tensor:
    """Return those of ``going`` that can go for good without taking a choice from :func:`round_gates`.

    What is left of every group is a number that it may keep; the best of those that were to go make it up.
    """
    can_go = going & ~gone
    for group, step in zip(plan.groups, _gates_per_step(plan, round_to), strict=True):
        own = can_go[group.gates]
        alive = group.size - int(gone[group.gates].sum())
        left = alive - int(own.sum())
        wanted = next((rung for rung in _rungs(step, group.size, alive) if rung >= left), alive)
        by_score = scores[group.gates].argsort(descending=True, stable=True)
        staying = by_score[own[by_score]][: wanted - left]
        can_go[staying + group.offset] = False
    return can_go


def _rungs(step: int, size: int, alive: int) -> list[int]:
    """Return the numbers of gates that a group may keep of those that can be opened.

    >>> _rungs(8, size=20, alive=20), _rungs(8, size=20, alive=17), _rungs(8, size=5, alive=4)
    ([8, 16, 20], [8, 16], [4])
    """
    multiples = list(range(step, alive + 1, step))
    return multiples if multiples and (alive < size or multiples[-1] == size) else [*multiples, alive]


def _gates_per_step(plan: Plan, round_to: int) -> Iterator[int]:
    """Yield for every group how many gates make a step of N channels.

    A gate of coupled structures (a group of a grouped convolution or of a group norm) stands for several channels.
    """
    together = [0] * len(plan.groups)
    for axis in plan.filters:
        gates = plan.axes[axis]
        counts = torch.bincount(gates[gates >= 0], minlength=plan.num_gates)
        for number, group in enumerate(plan.groups):
            together[number] = math.gcd(together[number], *counts[group.gates].unique().tolist())
    for channels in together:
        yield round_to // math.gcd(round_to, max(channels, 1))


def _ladders(
    plan: Plan, is_open: Tensor, scores: Tensor, round_to: int, may_vanish: bool, gone: Tensor | None
) -> list[_Ladder]:
    check_round_to(round_to)
    alive = torch.ones_like(is_open) if gone is None else ~gone
    return [
        ladder
        for group, step in zip(plan.groups, _gates_per_step(plan, round_to), strict=True)
        if (ladder := _Ladder.of(group, step, is_open, alive, scores, may_vanish)) is not None
    ]


@dataclass(frozen=True)
class _Ladder:
    """The numbers of gates that one group may keep."""

    order: Tensor
    """the group's gates, the best first"""
    rungs: list[int]
    nearest: int
    """the place of the number nearest to what is open now; of two, that of the larger"""

    @classmethod
    def of(
        cls, group: Group, step: int, is_open: Tensor, alive: Tensor, scores: Tensor, may_vanish: bool
    ) -> _Ladder | None:
        """Return a group's ladder; None for one that shall be left alone."""
        own, opened = scores[group.gates], is_open[group.gates]
        count = int(opened.sum())
        if may_vanish and count == 0:
            return None
        by_score = own.argsort(descending=True, stable=True)
        by_score = by_score[alive[group.gates][by_score]]
        order = by_score[opened[by_score].long().argsort(descending=True, stable=True)]  # whatever is open comes first
        rungs = _rungs(step, group.size, len(order))
        nearest = min(range(len(rungs)), key=lambda place: (abs(rungs[place] - count), -rungs[place]))
        return cls(order + group.offset, rungs, nearest)

    @property
    def choices(self) -> Tensor:
        """Return a row for every number: which gates it keeps, in order."""
        return torch.arange(len(self.order)) < torch.tensor(self.rungs)[:, None]


def _chosen(ladders: list[_Ladder], places: Places, is_open: Tensor) -> Tensor:
    chosen = is_open.clone()
    for ladder, place in zip(ladders, places, strict=True):
        keep = ladder.rungs[place]
        chosen[ladder.order[:keep]] = True
        chosen[ladder.order[keep:]] = False
    return chosen


def _worth(scores: Tensor, alive: Tensor, price: Tensor) -> Tensor:
    """Return what every gate is worth: its price times exp of its score, standardised, so that units do not matter."""
    own = scores.double()
    left = own[alive]
    spread = left.std(correction=0).clamp_min(1e-12) if len(left) else 1.0
    price = price.double().cpu()
    price = price.clamp_min(1e-3 * float(price.mean().clamp_min(1e-30)))  # flat tables, layers without readers
    return price * ((own - left.mean()) / spread).clamp(-4, 4).exp()


def _costs(within: Within, ladders: list[_Ladder], is_open: Tensor) -> Costs:
    if within.terms is None:
        return CalledCosts(
            [len(ladder.rungs) for ladder in ladders], lambda places: within.share(_chosen(ladders, places, is_open))
        )
    others = is_open.clone()
    for ladder in ladders:
        others[ladder.order] = False
    return PairwiseCosts(pairwise(within.terms, [(ladder.order, ladder.choices) for ladder in ladders], others))
