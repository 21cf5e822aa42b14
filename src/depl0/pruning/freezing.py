"""The end of a search: gates are frozen within the budget, and batch-norm statistics measured anew for what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depl0._processes import share_buffers
from depl0.budgets.freeze import freeze, freeze_by
from depl0.budgets.threshold import BudgetKind
from depl0.gated import GatedModel
from depl0.pruning.calibration import Calibration
from depl0.pruning.latency_budget import freeze_together
from depl0.pruning.statistics import renew_statistics


@dataclass(frozen=True)
class Freezing:
    """What freezing did."""

    gates: Tensor
    forced: int
    """gates that the budget closed although the evaluation rule had them open"""
    statistics_renewed: bool
    latency: dict[str, Any] | None = None
    """where the budget is a latency: what was foretold and measured"""


def freeze_network(
    gated: GatedModel,
    budget: float | None,
    of: BudgetKind,
    *,
    scores: Tensor | None = None,
    calibration: Calibration | None = None,
) -> Freezing:
    """Freeze the gates, in order of log α or of ``scores``, and renew statistics where there is data for that.

    Rounding and whole blocks are as in ``gated.config``.
    """
    share_buffers(gated)  # each process has seen other data since the last step; all shall go on with the same
    rules: Any = {"remove_blocks": gated.config.remove_blocks, "round_to": gated.config.round_to}
    latency = None
    if budget is not None and of == "latency":
        frozen, latency = freeze_together(gated, budget, scores, **rules)
    elif scores is None or budget is None:
        frozen = freeze(gated, budget, of, **rules)
    else:
        frozen = freeze_by(gated, scores, budget, of, **rules)
    renewed = calibration is not None and renew_statistics(gated, calibration)
    return Freezing(frozen.gates, frozen.forced, renewed, latency)
