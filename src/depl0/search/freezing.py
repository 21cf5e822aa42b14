"""The end of a search: gates are frozen within the budget, and what is left is made to fit.

Either the layers behind the closed channels are fitted anew in closed form (:mod:`.recovery.compensation`), or
batch-norm statistics are measured anew; not both, because the fit has already put its constants there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depl0._util.distributed import mean_of_all, share_buffers, share_parameters
from depl0.gated import GatedModel
from depl0.gates.threshold import BudgetKind
from depl0.search.calibration import Calibration
from depl0.search.latency_budget import freeze_together
from depl0.search.recovery.compensation import Compensation, compensate
from depl0.search.recovery.statistics import absorb_statistics, judged, renew_statistics
from depl0.select.freeze import Frozen, final_gates, gates_by


@dataclass(frozen=True)
class Freezing:
    """What freezing did."""

    gates: Tensor
    forced: int
    """gates that the budget closed although the evaluation rule had them open"""
    statistics_renewed: bool
    compensation: Compensation | None = None
    """where layers were fitted to the cut: which, how well, and which could not be"""
    latency: dict[str, Any] | None = None
    """where the budget is a latency: what was foretold and measured"""


def freeze_network(
    gated: GatedModel,
    budget: float | None,
    of: BudgetKind,
    *,
    scores: Tensor | None = None,
    calibration: Calibration | None = None,
    compensated: bool = False,
    renewed: bool = True,
) -> Freezing:
    """Freeze the gates, in order of log α or of ``scores``, and make what is left fit where there is data for that.

    ``compensated`` and ``renewed`` say which of the two is wanted, in this order. Rounding and whole blocks are as in
    ``gated.config``. With a latency budget, whose gates are found by measuring, nothing is compensated.
    """
    share_buffers(gated)  # each process has seen other data since the last step; all shall go on with the same
    measured_on = calibration if renewed else None
    if budget is not None and of == "latency":
        rules: Any = {"remove_blocks": gated.config.remove_blocks, "round_to": gated.config.multiple}
        frozen, latency = freeze_together(gated, budget, scores, **rules)
        renewed = measured_on is not None and renew_statistics(gated, measured_on)
        return Freezing(frozen.gates, frozen.forced, renewed, latency=latency)
    before = None if scores is not None else gated.evaluation_gates()
    frozen = _chosen(gated, budget, of, scores)
    fitted: Compensation | None = None
    if compensated and calibration is not None:
        fitted = _fitted_if_better(gated, frozen, before, calibration)
    gated.fix_gates(frozen.gates)
    renewed = fitted is None and measured_on is not None and renew_statistics(gated, measured_on)
    return Freezing(frozen.gates, frozen.forced, renewed, fitted)


def _fitted_if_better(
    gated: GatedModel, frozen: Frozen, before: Tensor | None, calibration: Calibration
) -> Compensation | None:
    """Compensate for what freezing closes; after a search that closed most before, only where the loss says so."""
    state = {name: value.clone() for name, value in gated.host.state_dict().items()}
    inputs = calibration.inputs()
    fitted = compensate(gated, _closing(gated, frozen, before), inputs, before=before, after=frozen.gates)
    gated.fix_gates(frozen.gates)
    settle(gated, inputs)
    if before is None:
        return fitted
    loss, settled = judged(gated, calibration), {k: v.clone() for k, v in gated.host.state_dict().items()}
    gated.host.load_state_dict(state)
    renew_statistics(gated, calibration)
    loss_without = judged(gated, calibration)
    if loss is not None and loss_without is not None:
        losses = mean_of_all(torch.stack([loss, loss_without]))
        if not bool(losses[0] < losses[1]):
            gated.host.load_state_dict(state)
            return None
    gated.host.load_state_dict(settled)
    return fitted


def settle(gated: GatedModel, inputs: Iterable[Any]) -> None:
    """Make a compensated network one that can be trained on, the same in all processes."""
    absorb_statistics(gated, inputs)
    share_parameters(gated.host)  # each process has looked at other data
    share_buffers(gated.host)


def _chosen(gated: GatedModel, budget: float | None, of: BudgetKind, scores: Tensor | None) -> Frozen:
    config = gated.config
    if scores is None or budget is None:
        return final_gates(gated, budget, of, config.remove_blocks, round_to=config.multiple)
    return gates_by(gated, scores, budget, of, config.remove_blocks, round_to=config.multiple)


def _closing(gated: GatedModel, frozen: Frozen, before: Tensor | None) -> Tensor:
    """Return the gates that are open now and will be closed."""
    was_open = ~gated.gone if before is None else before.cpu() > 0
    return was_open & (frozen.gates == 0)
