"""The state that a search keeps between steps, and the gates that have closed for good.

A gate that is cut out cannot open again. With a budget, the threshold rises while the target falls, away from the gates
below it. Once it is constant, these gates only become more certain, because the sharpness still rises. With a penalty,
a closed gate only gets the gradient of the penalty. So a gate that has stayed below the threshold for a while hardly
ever opens again.

The published presets start with gates that were closed only by their random initialisation. The search has not judged
those gates yet, so they are not cut out during the search, unless they open first and close again. The rule for
evaluation gates decides which gates are open or closed at the start: a gate that starts half closed and sinks under the
penalty alone was never judged either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depl0.config import GateConfig
from depl0.gates import hard_concrete
from depl0.select.rounding import removable_in_steps
from depl0.select.snapshot import Snapshot

CLOSED_BELOW = 0.01
"""Open probability below which a gate counts as closed."""
CLOSED_STREAK = 2
"""Number of consecutive checks at which a gate must have been closed."""
LEAST_GAIN = 0.1
"""Fraction of the remaining MACs that a cut must save."""
_NEVER = -(2**62)
"""Initial streak of a gate that starts closed: it never becomes long enough."""


@dataclass
class SearchState:
    """The state that a search keeps between steps."""

    done: int = 0
    """Number of steps that have begun."""
    released: bool = False
    """True if the gates can move, after the warm-up."""
    frozen: bool = False
    closed_streak: Tensor | None = None
    """Number of consecutive checks at which each gate was nearly closed."""


def first_streak(log_alpha: Tensor, rule: str) -> Tensor:
    """Return the initial value of :func:`closed_streak`: gates that start closed do not count until they have opened.

    ``rule`` is the rule for evaluation gates.

    >>> streak = first_streak(torch.tensor([-9.0, -3.0, 3.0]), "median")
    >>> for _ in range(CLOSED_STREAK):
    ...     streak = closed_streak(torch.tensor([-9.0, -9.0, -9.0]), streak, "median")
    >>> streak >= CLOSED_STREAK
    tensor([False, False,  True])
    """
    return torch.where(_is_open(log_alpha, rule), 0, _NEVER)


def closed_streak(log_alpha: Tensor, before: Tensor | None, rule: str) -> Tensor:
    """Return the number of consecutive checks at which each gate was nearly closed, including this one.

    A gate that started closed counts from the time it is open by the rule for evaluation gates.
    """
    below = hard_concrete.open_probability(log_alpha) < CLOSED_BELOW
    before = torch.zeros_like(below, dtype=torch.long) if before is None else before
    unjudged = (before < 0) & ~_is_open(log_alpha, rule)
    return torch.where(below, before + 1, torch.where(unjudged, before, 0))


def closing_gates(network: Snapshot, config: GateConfig, log_alpha: Tensor, streak: Tensor) -> Tensor:
    """Return the gates that have been nearly closed for long enough.

    One gate of every group is kept: its channel stays anyway, and without it a plain chain of layers would be
    disconnected permanently. The remaining number of gates of a group is one that ``round_to`` and ``min_share`` allow.
    """
    closing = network.removable((streak >= CLOSED_STREAK) & ~network.removed)
    if config.round_to == 1 and not config.min_share:
        return closing
    return removable_in_steps(network.plan, closing, network.removed, log_alpha, config)


def cut_is_profitable(network: Snapshot, closing: Tensor) -> bool:
    """Return True if cutting these gates out saves enough cost to pay for rebuilding the network."""
    if not bool(closing.any()):
        return False
    now, then = network.cost(~network.removed), network.cost(~(network.removed | closing))
    return then.macs <= (1 - LEAST_GAIN) * now.macs


def _is_open(log_alpha: Tensor, rule: str) -> Tensor:
    return log_alpha > hard_concrete.closing_log_alpha(rule)
