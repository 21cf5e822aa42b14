"""Numbers of channels that hardware likes: kept channels of every group as a multiple of N.

Vector units and matrix kernels work on 8, 16 or 32 channels at a time; what is left over costs as much as a whole step.
So each group keeps a multiple of N of its channels, or all of them. The gates that change are the most doubtful ones:
the best of the closed are opened, or the worst of the open are closed, so that the order of the scores is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from depl0.analysis.plan import Group, Plan
from depl0.errors import GateError, InputError

Fits = Callable[[Tensor], bool]
"""says whether a network with these gates open keeps the budget"""


def check_round_to(round_to: int) -> None:
    """Refuse what is no number of channels."""
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise InputError(
            f"round_to must be a whole number of at least 1, got {round_to!r} instead.",
            hint="8, 16 or 32 channels suit most hardware; 1 rounds nothing.",
        )


def round_gates(
    plan: Plan,
    is_open: Tensor,
    scores: Tensor,
    round_to: int,
    fits: Fits | None = None,
    *,
    may_vanish: bool = False,
    gone: Tensor | None = None,
) -> Tensor:
    """Return which gates are open when every group's channels are a multiple of ``round_to``, or all of the group.

    Args:
        plan: the groups.
        is_open: which gates are open now.
        scores: the order within a group, and which group's gates are the more doubtful ones.
        round_to: N. A group of fewer channels keeps all of them; no other keeps fewer than N.
        fits: the budget; without one, every group goes to the nearest multiple.
        may_vanish: leave groups alone whose gates are all closed, because their layers are going to be removed.
        gone: gates that cannot be opened any more.
    """
    check_round_to(round_to)
    alive = torch.ones_like(is_open) if gone is None else ~gone
    ladders = [
        ladder
        for group, step in zip(plan.groups, _gates_per_step(plan, round_to), strict=True)
        if (ladder := _Ladder.of(group, step, is_open, alive, scores, may_vanish)) is not None
    ]
    for ladder in ladders:
        ladder.to_nearest()
    if fits is not None:
        _close_until(fits, ladders, is_open)
        _open_while(fits, ladders, is_open)
    return _chosen(ladders, is_open)


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


@dataclass(eq=False)
class _Ladder:
    """The numbers of gates that one group may keep, and the one chosen."""

    order: Tensor
    """the group's gates, the best first"""
    worth: Tensor
    """the scores in that order"""
    rungs: list[int]
    place: int
    open_before: int

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
        return cls(order + group.offset, own[order], _rungs(step, group.size, len(order)), 0, count)

    def to_nearest(self) -> None:
        """Choose the number nearest to what is open now; of two, the larger."""
        self.place = min(
            range(len(self.rungs)), key=lambda place: (abs(self.rungs[place] - self.open_before), -self.rungs[place])
        )

    @property
    def below(self) -> float | None:
        """Return what the gates are worth that one step down would close."""
        return self._mean(self.place - 1) if self.place > 0 else None

    @property
    def above(self) -> float | None:
        """Return what the gates are worth that one step up would open."""
        return self._mean(self.place) if self.place + 1 < len(self.rungs) else None

    def _mean(self, place: int) -> float:
        return float(self.worth[self.rungs[place] : self.rungs[place + 1]].mean())


def _chosen(ladders: list[_Ladder], is_open: Tensor) -> Tensor:
    chosen = is_open.clone()
    for ladder in ladders:
        keep = ladder.rungs[ladder.place]
        chosen[ladder.order[:keep]] = True
        chosen[ladder.order[keep:]] = False
    return chosen


def _close_until(fits: Fits, ladders: list[_Ladder], is_open: Tensor) -> None:
    """Step down where the least is lost, until the budget is kept."""
    while not fits(_chosen(ladders, is_open)):
        candidates = [(worth, ladder) for ladder in ladders if (worth := ladder.below) is not None]
        if not candidates:
            raise GateError(
                "no choice of rounded channels keeps the budget: every group is down to its smallest number already.",
                hint="ask for a larger budget, or round to fewer channels.",
            )
        min(candidates, key=lambda pair: pair[0])[1].place -= 1


def _open_while(fits: Fits, ladders: list[_Ladder], is_open: Tensor) -> None:
    """Step up where the most is won, as long as something still fits."""
    left = list(ladders)
    while candidates := [(worth, ladder) for ladder in left if (worth := ladder.above) is not None]:
        best = max(candidates, key=lambda pair: pair[0])[1]
        best.place += 1
        if not fits(_chosen(ladders, is_open)):
            best.place -= 1
            left.remove(best)
