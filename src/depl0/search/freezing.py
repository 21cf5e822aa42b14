"""The end of a search: gates are frozen within the budget, and what is left is made to fit.

Either the layers behind the closed channels are fitted anew in closed form (:mod:`.recovery.compensation`), or
batch-norm statistics are measured anew; not both, because the fit has already put its constants there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.distributed import all_reduce_mean, broadcast, broadcast_buffers, broadcast_parameters, is_first
from depl0.config import GateConfig
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration
from depl0.search.recovery.compensation import Compensation, compensate
from depl0.search.recovery.statistics import absorb_statistics, judged, renew_statistics
from depl0.select.gates import Selection, select_gates
from depl0.select.latency import select_within_latency


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
    """if the budget is a latency: the shares of MACs that were tried, and the times that were measured"""


def freeze_network(
    gated: GatedModel,
    config: GateConfig | None = None,
    *,
    scores: Tensor | None = None,
    calibration: Calibration | None = None,
    compensated: bool = False,
    renewed: bool = True,
    original: nn.Module | None = None,
) -> Freezing:
    """Select the gates, fix them, and make what is left fit where there is data for that.

    Args:
        gated: the network.
        config: the budget and the rules; None: those of the network.
        scores: the order of the gates; None: log α. They become the gates' log α.
        calibration: the data.
        compensated: whether the layers behind closed channels are fitted anew.
        renewed: whether batch-norm statistics are measured anew, where nothing was fitted.
        original: with ``scores``, the network whose outputs are to be kept, if the host has other weights by now.
    """
    config = config or gated.config
    broadcast_buffers(gated)  # each process has seen other data since the last step; all shall go on with the same
    gated.engine.free_gates()
    before = None if scores is not None else gated.evaluation_gates()
    selection, latency = _selected(gated, config, scores)
    fitted, renewed = _fit(gated, selection.gates, before, calibration, compensated, renewed, original)
    return Freezing(selection.gates, selection.forced, renewed, fitted, latency)


def fit_to_frozen(gated: GatedModel, *, calibration: Calibration | None, compensated: bool, renewed: bool) -> None:
    """Make a network whose gates are frozen fit them once more: it has got other weights since."""
    broadcast_buffers(gated)
    gates = gated.evaluation_gates().cpu()
    gated.engine.free_gates()
    _fit(gated, gates, gated.evaluation_gates(), calibration, compensated, renewed)


def _fit(
    gated: GatedModel,
    gates: Tensor,
    before: Tensor | None,
    calibration: Calibration | None,
    compensated: bool,
    renewed: bool,
    original: nn.Module | None = None,
) -> tuple[Compensation | None, bool]:
    """Fix these gates and make what is left fit; return what was fitted, and whether statistics were renewed."""
    fitted: Compensation | None = None
    if compensated and calibration is not None:
        fitted = _fitted_if_better(gated, gates, before, calibration, original)
    gated.engine.fix_gates(gates)
    renewed = fitted is None and renewed and calibration is not None and renew_statistics(gated, calibration)
    return fitted, renewed


def _selected(gated: GatedModel, config: GateConfig, scores: Tensor | None) -> tuple[Selection, dict[str, Any] | None]:
    """Return the gates, and if latency is the budget, what was measured.

    The first process measures, and all take what it found.
    """
    engine, scores = gated.engine, None if config.budget is None else scores
    if scores is not None:
        engine.start_from(scores)
    if config.budget is None or config.of != "latency":
        return select_gates(engine.snapshot(), config, scores), None
    found, record = torch.zeros(gated.plan.num_gates + 1, device=engine.device), {}
    if is_first():
        result = select_within_latency(engine.snapshot(), config, scores)
        found = torch.cat([result.selection.gates, torch.tensor([float(result.selection.forced)])]).to(engine.device)
        record = {
            "measured": result.measured,
            "attempts": [asdict(attempt) for attempt in result.attempts],
        }
    found = broadcast(found).cpu()
    return Selection(found[:-1], int(found[-1])), record


def _fitted_if_better(
    gated: GatedModel,
    gates: Tensor,
    before: Tensor | None,
    calibration: Calibration,
    original: nn.Module | None,
) -> Compensation | None:
    """Compensate for what freezing closes; after a search that closed most before, only where the loss says so."""
    state = {name: value.clone() for name, value in gated.host.state_dict().items()}
    inputs = calibration.inputs()
    fitted = compensate(gated, _closing(gated, gates, before), inputs, before=before, after=gates, original=original)
    gated.engine.fix_gates(gates)
    settle(gated, inputs)
    if before is None:
        return fitted
    loss, settled = judged(gated, calibration), {k: v.clone() for k, v in gated.host.state_dict().items()}
    gated.host.load_state_dict(state)
    renew_statistics(gated, calibration)
    loss_without = judged(gated, calibration)
    if loss is not None and loss_without is not None:
        losses = all_reduce_mean(torch.stack([loss, loss_without]))
        if not bool(losses[0] < losses[1]):
            gated.host.load_state_dict(state)
            return None
    gated.host.load_state_dict(settled)
    return fitted


def settle(gated: GatedModel, inputs: Iterable[Any]) -> None:
    """Make a compensated network one that can be trained on, the same in all processes."""
    absorb_statistics(gated, inputs)
    broadcast_parameters(gated.host)  # each process has looked at other data
    broadcast_buffers(gated.host)


def _closing(gated: GatedModel, gates: Tensor, before: Tensor | None) -> Tensor:
    """Return the gates that are open now and will be closed."""
    was_open = ~gated.engine.removed if before is None else before.cpu() > 0
    return was_open & (gates == 0)
