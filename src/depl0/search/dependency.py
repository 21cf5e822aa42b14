"""How much the dependency between gates decides: what of log α comes from other groups, and which gates turn on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.gates.generators.dependency import parts, spread_share


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
    the scores as they are and once with W = 0. Fed on gates, groups are fed on the model's own evaluation gates.
    """
    found = None if gated.engine.is_fixed else parts(gated.generator, gated.engine.gates_of_group)
    if found is None:
        return None
    differ = _open_gates(gated, found.scores()) != _open_gates(gated, found.alone())
    return Dependency(spread_share(gated.generator, found), int(differ.sum()), int((~gated.engine.removed).sum()))


def _open_gates(gated: GatedModel, scores: Tensor) -> Tensor:
    threshold, log_alpha = gated.engine.threshold, scores
    if threshold is not None:
        before = threshold.shift.clone()
        threshold.solve(scores)
        log_alpha = threshold.sharpness * (scores - threshold.shift)
        threshold.shift.copy_(before)
    return (hard_concrete.evaluation_gates(log_alpha, gated.config.evaluation).cpu() > 0) & ~gated.engine.removed
