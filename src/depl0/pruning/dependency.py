"""How much the dependency between gates decides: what of log α comes from other groups, and which gates turn on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.generators.dependency import spread_share, without_dependency


@final
@dataclass(frozen=True)
class Dependency:
    """How much the dependency between gates decides at one moment."""

    spread_share: float | None
    """the spread of W·x over a group's gates, over that of W·x + b; None: nothing spreads yet"""
    gates_that_differ: int
    """gates that would be open instead of closed, or closed instead of open, with W = 0"""
    gates: int
    """of so many that are not gone"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {"spread_share": self.spread_share, "gates_that_differ": self.gates_that_differ, "gates": self.gates}


@torch.no_grad()
def measure_dependency(gated: GatedModel) -> Dependency | None:
    """Measure it; None where the gates know nothing of each other, or are fixed.

    The same rule decides which gates are open: with a budget, the threshold is found anew for the same cost, once with
    the scores as they are and once with W = 0.
    """
    alone = None if gated.is_fixed else without_dependency(gated.generator)
    if alone is None:
        return None
    differ = _open_gates(gated, _scores(gated)) != _open_gates(gated, alone)
    return Dependency(spread_share(gated.generator), int(differ.sum()), int((~gated.gone).sum()))


def _scores(gated: GatedModel) -> Tensor:
    scores: Tensor = gated.generator()
    return scores


def _open_gates(gated: GatedModel, scores: Tensor) -> Tensor:
    budget, log_alpha = gated.budget, scores
    if budget is not None:
        before = budget.shift.clone()
        budget.solve(scores)
        log_alpha = budget.sharpness * (scores - budget.shift)
        budget.shift.copy_(before)
    return (hard_concrete.evaluation_gates(log_alpha, gated.config.evaluation).cpu() > 0) & ~gated.gone
