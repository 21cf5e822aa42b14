"""Hardware-friendly channel counts: every group keeps a multiple of N channels.

Vector units and matrix kernels process 8, 16 or 32 channels at a time, and a partly filled block costs as much as a
full one. Each group therefore keeps a multiple of N of its channels, or all of them; the best by their scores. The
number of multiples that each group keeps within a budget is a knapsack problem (:mod:`depl0.select.knapsack`). Scores
are importance per cost on a logarithmic scale, so the value of a gate with score s is price·exp(s), where the prices
are those of the network that the scores alone would select.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from depl0.analysis.plan import Group, Plan
from depl0.config import GateConfig
from depl0.costs.terms import PairwiseCost
from depl0.errors import GateError
from depl0.gates.threshold import counted
from depl0.select.knapsack import Knapsack, Places, solve
from depl0.select.snapshot import Snapshot

TRIES = 8
"""Number of times that the budget is lowered because the terms missed a cost."""


def round_to_nearest(network: Snapshot, config: GateConfig, scores: Tensor, is_open: Tensor) -> Tensor:
    """Return the open gates if every group keeps the nearest multiple of ``config.round_to``, or all of its gates.

    A group with fewer than N channels keeps all of them; no other group keeps fewer than N. With
    ``config.remove_blocks``, groups whose gates are all closed are unchanged, because their layers will be removed.
    """
    all_options = _all_options(network, config, scores, is_open)
    return _chosen(all_options, [options.nearest for options in all_options], is_open)


def round_within(network: Snapshot, config: GateConfig, scores: Tensor, is_open: Tensor) -> Tensor:
    """Return the most valuable rounded gates within the budget that a greedy selection with exchanges finds.

    Args:
        network: the groups and their costs.
        config: the budget, and N.
        scores: the order within a group and the importance of groups relative to each other.
        is_open: the gates that the scores alone would open.
    """
    assert config.budget is not None
    all_options = _all_options(network, config, scores, is_open)
    worth = gate_values(network, config, scores, is_open)
    values = tuple(worth[options.order].cumsum(0)[torch.tensor(options.widths) - 1].numpy() for options in all_options)
    tables, dense = _cost_tables(network, config, all_options, is_open)
    budget = _largest_cost(config.budget, dense)
    for _ in range(TRIES):
        problem = Knapsack(values, tables, budget)
        places = solve(problem, [options.nearest for options in all_options])
        if places is None:
            break
        chosen = _chosen(all_options, places, is_open)
        over = network.share(chosen, config.of) - config.budget
        if over <= 0:
            return chosen
        budget -= 1.01 * over * dense  # some layer keeps a channel that the terms do not include
    raise GateError(
        "no choice of rounded channels keeps the budget: every group is down to its smallest number already.",
        hint="use a larger budget, or round to fewer channels.",
    )


def _largest_cost(share: float, dense: float) -> float:
    """Return the budget as an absolute cost.

    The fraction times the dense cost may lie just below the intended integer because of rounding errors.
    """
    cost = share * dense
    whole = float(round(cost))
    return max(cost, whole) if whole / dense <= share else cost


def removable_in_steps(plan: Plan, closing: Tensor, removed: Tensor, scores: Tensor, config: GateConfig) -> Tensor:
    """Return those of ``closing`` that can be removed permanently without restricting rounding or ``min_share``.

    The number of remaining gates of every group is one that it may keep; the best gates of ``closing`` fill it up.
    """
    removable = closing & ~removed
    for group, step in zip(plan.groups, _gates_per_step(plan, config.round_to), strict=True):
        own = removable[group.gates]
        alive = group.size - int(removed[group.gates].sum())
        left = alive - int(own.sum())
        widths = _widths(step, group.size, alive, config.min_gates(group.name, group.size))
        wanted = next((rung for rung in widths if rung >= left), alive)
        by_score = scores[group.gates].argsort(descending=True, stable=True)
        staying = by_score[own[by_score]][: wanted - left]
        removable[staying + group.offset] = False
    return removable


def _widths(step: int, size: int, alive: int, least: int = 0) -> list[int]:
    """Return the allowed numbers of gates of a group, at least ``least``; all that are left if no multiple is.

    >>> _widths(8, size=20, alive=20), _widths(8, size=20, alive=17), _widths(8, size=5, alive=4)
    ([8, 16, 20], [8, 16], [4])
    >>> _widths(8, size=20, alive=20, least=9)
    [16, 20]
    >>> _widths(8, size=576, alive=60, least=58)
    [60]
    """
    multiples = list(range(step, alive + 1, step))
    widths = multiples if multiples and (alive < size or multiples[-1] == size) else [*multiples, alive]
    return [rung for rung in widths if rung >= least] or [alive]


def _gates_per_step(plan: Plan, round_to: int) -> Iterator[int]:
    """Yield for every group the number of gates that make up a step of N channels.

    A gate of coupled structures (a group of a grouped convolution or of a group norm) covers several channels.
    """
    together = [0] * len(plan.groups)
    for axis in plan.filters:
        gates = plan.axes[axis]
        counts = torch.bincount(gates[gates >= 0], minlength=plan.num_gates)
        for number, group in enumerate(plan.groups):
            together[number] = math.gcd(together[number], *counts[group.gates].unique().tolist())
    for channels in together:
        yield round_to // math.gcd(round_to, max(channels, 1))


def _all_options(network: Snapshot, config: GateConfig, scores: Tensor, is_open: Tensor) -> list[_WidthOptions]:
    plan, alive = network.plan, ~network.removed
    return [
        options
        for group, step in zip(plan.groups, _gates_per_step(plan, config.round_to), strict=True)
        if (options := _WidthOptions.of(group, step, is_open, alive, scores, config)) is not None
    ]


@dataclass(frozen=True)
class _WidthOptions:
    """The allowed numbers of gates of one group."""

    order: Tensor
    """The group's gates, the best first."""
    widths: list[int]
    nearest: int
    """Index of the number nearest to the currently open gates; the larger one if two are equally near."""

    @classmethod
    def of(
        cls, group: Group, step: int, is_open: Tensor, alive: Tensor, scores: Tensor, config: GateConfig
    ) -> _WidthOptions | None:
        """Return the allowed numbers of a group; None if it has no gates or is not to be changed."""
        own, opened = scores[group.gates], is_open[group.gates]
        count = int(opened.sum())
        if not bool(alive[group.gates].any()) or (config.remove_blocks and count == 0):
            return None
        by_score = own.argsort(descending=True, stable=True)
        by_score = by_score[alive[group.gates][by_score]]
        order = by_score[opened[by_score].long().argsort(descending=True, stable=True)]  # open gates come first
        widths = _widths(step, group.size, len(order), config.min_gates(group.name, group.size))
        nearest = min(range(len(widths)), key=lambda place: (abs(widths[place] - count), -widths[place]))
        return cls(order + group.offset, widths, nearest)

    @property
    def choices(self) -> Tensor:
        """Return a mask of the kept gates for every number, in order."""
        return torch.arange(len(self.order)) < torch.tensor(self.widths)[:, None]


def _chosen(all_options: list[_WidthOptions], places: Places, is_open: Tensor) -> Tensor:
    chosen = is_open.clone()
    for options, place in zip(all_options, places, strict=True):
        keep = options.widths[place]
        chosen[options.order[:keep]] = True
        chosen[options.order[keep:]] = False
    return chosen


def gate_values(network: Snapshot, config: GateConfig, scores: Tensor, is_open: Tensor) -> Tensor:
    """Return the value of every gate: its price times exp of its standardised score, so that units do not matter."""
    own = scores.double()
    left = own[~network.removed]
    spread = left.std(correction=0).clamp_min(1e-12) if len(left) else 1.0
    price = network.marginal_cost(is_open, config.of).double()
    price = price.clamp_min(1e-3 * float(price.mean().clamp_min(1e-30)))  # flat tables, layers without consumers
    return price * ((own - left.mean()) / spread).clamp(-4, 4).exp()


def _cost_tables(
    network: Snapshot, config: GateConfig, all_options: list[_WidthOptions], is_open: Tensor
) -> tuple[PairwiseCost, float]:
    """Return the cost of all choices, and the dense cost in the same unit."""
    others = is_open.clone()
    for options in all_options:
        others[options.order] = False
    of, choices = counted(config.of), [(options.order, options.choices) for options in all_options]
    return network.expected.pairwise(of, choices, others), network.expected.dense(of)
