"""Which gates have closed for good, while others still move: those whose channels can be cut out during the search.

A gate that is cut out cannot come back. With a budget the threshold rises while the target falls, away from the gates
below it, and once it rests they become only surer, because the sharpness still rises; with a penalty, a closed gate has
nothing but the penalty to move it. So a gate that has stayed below the threshold for a while hardly ever returns.

The published presets start with gates that nothing but random numbers has closed. The search has not judged those yet,
so they are not cut out while it goes on, unless they open first and close again. Open and closed at the start is by the
rule for evaluation gates: a gate that starts half closed and sinks under the penalty alone was never judged either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.select.rounding import removable_in_steps

CLOSED_BELOW = 0.01
"""the open probability below which a gate counts as good as closed"""
CLOSED_STREAK = 2
"""checks in a row that a gate must have been there"""
LEAST_GAIN = 0.1
"""the share of the remaining MACs that must become free"""
_NEVER = -(2**62)
"""the first streak of a gate that starts closed: it never grows long enough"""


def first_streak(log_alpha: Tensor, rule: str) -> Tensor:
    """Return where :func:`closed_streak` starts: gates that start closed do not count until they have opened.

    ``rule`` is the one for evaluation gates.

    >>> streak = first_streak(torch.tensor([-9.0, -3.0, 3.0]), "median")
    >>> for _ in range(CLOSED_STREAK):
    ...     streak = closed_streak(torch.tensor([-9.0, -9.0, -9.0]), streak, "median")
    >>> streak >= CLOSED_STREAK
    tensor([False, False,  True])
    """
    return torch.where(_is_open(log_alpha, rule), 0, _NEVER)


def closed_streak(log_alpha: Tensor, before: Tensor | None, rule: str) -> Tensor:
    """Return for how many checks in a row each gate has been nearly closed, this one included.

    A gate that started closed starts to count when it is open by the rule for evaluation gates.
    """
    below = hard_concrete.open_probability(log_alpha) < CLOSED_BELOW
    before = torch.zeros_like(below, dtype=torch.long) if before is None else before
    unjudged = (before < 0) & ~_is_open(log_alpha, rule)
    return torch.where(below, before + 1, torch.where(unjudged, before, 0))


def closing_gates(gated: GatedModel, log_alpha: Tensor, streak: Tensor) -> Tensor:
    """Return the gates that have been nearly closed for long enough.

    One gate of every group is left to live: its channel stays anyway, and without it a plain chain of layers would
    be cut in two for good. What is left of a group is a number that it may keep, by ``round_to`` and ``min_share``.
    """
    removed = gated.engine.removed
    closing = gated.engine.removable((streak >= CLOSED_STREAK) & ~removed)
    if gated.config.round_to == 1 and not gated.config.min_share:
        return closing
    return removable_in_steps(gated.plan, closing, removed, log_alpha, gated.config)


def is_worth_it(gated: GatedModel, closing: Tensor) -> bool:
    """Tell whether cutting these gates out frees enough to pay for the rebuilding."""
    if not bool(closing.any()):
        return False
    engine = gated.engine
    now, then = engine.cost_without(engine.removed), engine.cost_without(closing)
    return then.macs <= (1 - LEAST_GAIN) * now.macs


def _is_open(log_alpha: Tensor, rule: str) -> Tensor:
    return log_alpha > hard_concrete.closing_log_alpha(rule)
