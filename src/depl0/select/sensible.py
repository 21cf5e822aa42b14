"""Budgets that can be reached, and leave too little to learn anything with."""

from __future__ import annotations

import torch

from depl0.gates.threshold import BudgetKind
from depl0.select.freeze import GatedNetwork

LEAST_CHANNELS = 2
LEAST_PART = 1 / 16
"""of every group's channels; what is narrower passes on little of its input"""


def sensible_share(gated: GatedNetwork, of: BudgetKind) -> float:
    """Return the share of the cost that is left if every group keeps a sixteenth of its channels, and two at least."""
    kept = torch.zeros(gated.plan.num_gates)
    for group in gated.plan.groups:
        most = min(group.size, max(LEAST_CHANNELS, round(group.size * LEAST_PART)))
        kept[group.offset : group.offset + most] = 1
    return gated.share_of(kept, of, torch.zeros(gated.plan.num_gates))


def warning_for(gated: GatedNetwork, budget: float, of: BudgetKind) -> str | None:
    """Return why a network of this budget would hardly do better than guessing; None if there is no such reason."""
    least = sensible_share(gated, of)
    if budget >= least:
        return None
    return (
        f"a budget of {budget:g} of the {of} leaves one or two channels in most layers: expect little more than "
        f"guessing. {least:.2g} is what a sixteenth of all channels costs."
    )
