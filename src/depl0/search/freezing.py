"""The end of a search: gates are frozen within the budget, and the remaining network is adjusted to them.

Either the consumer layers of the closed channels are refitted by least squares (:mod:`.recovery.compensation`), or
batch-norm statistics are re-estimated. Both together are not possible, because the refit stores its constants in the
statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.distributed import broadcast, broadcast_buffers, broadcast_parameters, is_first
from depl0.config import GateConfig
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration
from depl0.search.recovery.compensation import Fitted, compensate
from depl0.search.recovery.self_distillation import state_copy
from depl0.search.recovery.statistics import absorb_statistics, judged, renew_statistics
from depl0.select.gates import Selection, select_gates
from depl0.select.latency import select_within_latency


@dataclass(frozen=True)
class Freezing:
    """The result of freezing."""

    gates: Tensor
    forced: int
    """Number of gates that the budget closed although they were open by the evaluation rule."""
    statistics_renewed: bool
    compensation: tuple[Fitted, ...] | None = None
    """The layers that were refitted, with their errors; None without a refit."""
    latency: dict[str, Any] | None = None
    """With a latency budget: the tried fractions of the MACs, and the measured times."""


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
    """Select the gates, fix them, and adjust the remaining network if there are calibration data.

    Args:
        gated: the gated model.
        config: the budget and the rules; None: the configuration of ``gated``.
        scores: the order of the gates; None: log α. They become the gates' log α.
        calibration: the calibration data.
        compensated: if True, the consumer layers of closed channels are refitted.
        renewed: if True, batch-norm statistics are re-estimated, unless layers were refitted.
        original: with ``scores``, the network whose outputs are the target, if the host's weights have changed since.
    """
    config = config or gated.config
    broadcast_buffers(gated)  # ranks have seen different data since the last step, and must continue with equal buffers
    gated.free_gates()
    before = None if scores is not None else gated.evaluation_gates()
    selection, latency = _selected(gated, config, scores)
    fitted: tuple[Fitted, ...] | None = None
    if compensated and calibration is not None:
        fitted = _fitted_if_better(gated, selection.gates, before, calibration, original)
    gated.fix_gates(selection.gates)
    renewed = fitted is None and renewed and calibration is not None and renew_statistics(gated, calibration)
    return Freezing(selection.gates, selection.forced, renewed, fitted, latency)


def _selected(gated: GatedModel, config: GateConfig, scores: Tensor | None) -> tuple[Selection, dict[str, Any] | None]:
    """Return the gates, and with a latency budget also the measurements.

    Rank 0 measures, and all ranks use its result.
    """
    scores = None if config.budget is None else scores
    if scores is not None:
        gated.start_from(scores)
    if config.budget is None or config.of != "latency":
        return select_gates(gated.snapshot(), config, scores), None
    record: dict[str, Any] = {}
    found = torch.zeros(gated.plan.num_gates + 1, device=gated.device)
    if is_first():
        selection, record = select_within_latency(gated.snapshot(), config, scores)
        found = torch.cat([selection.gates, torch.tensor([float(selection.forced)])]).to(gated.device)
    found = broadcast(found).cpu()
    return Selection(found[:-1], int(found[-1])), record


def _fitted_if_better(
    gated: GatedModel,
    gates: Tensor,
    before: Tensor | None,
    calibration: Calibration,
    original: nn.Module | None,
) -> tuple[Fitted, ...] | None:
    """Refit for the gates that freezing closes; after a search, keep the refit only if it lowers the loss."""
    state = {} if before is None else state_copy(gated.host)
    inputs = calibration.inputs()
    fitted = compensate(gated, gates, inputs, before=before, original=original)
    gated.fix_gates(gates)
    absorb_bn_and_sync(gated, inputs)
    if before is None:
        return fitted
    loss, settled = judged(gated, calibration), state_copy(gated.host)
    gated.host.load_state_dict(state)
    renew_statistics(gated, calibration)
    loss_without = judged(gated, calibration)
    if loss is not None and loss_without is not None and not loss < loss_without:
        gated.host.load_state_dict(state)
        return None
    gated.host.load_state_dict(settled)
    return fitted


def absorb_bn_and_sync(gated: GatedModel, inputs: Iterable[Any]) -> None:
    """Make a refitted network trainable, with equal parameters and buffers on all ranks."""
    absorb_statistics(gated, inputs)
    broadcast_parameters(gated.host)  # ranks have seen different data
    broadcast_buffers(gated.host)
