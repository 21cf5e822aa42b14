"""The statistics of batch norms, measured anew where closing gates has moved what they describe."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depl0._host import evaluation_mode
from depl0._processes import mean_of_all, share_buffers
from depl0.gated import GatedModel
from depl0.pruning.calibration import Batches, Calibration, Loss, call


def renew_statistics(gated: GatedModel, calibration: Calibration) -> bool:
    """Measure batch norms' statistics anew for the gates as they are; tell whether the new ones are kept.

    Where there is a loss they are kept if it says so on other batches, and always where there is none.
    """
    before = statistics_of(gated.host)
    if not before:
        return False
    loss_before = _judged(gated, calibration)
    reestimate(gated, calibration.pairs(calibration.statistics))
    share_buffers(gated)
    loss_after = _judged(gated, calibration)
    if loss_before is None or loss_after is None:
        return True
    losses = mean_of_all(torch.stack([loss_before, loss_after]))
    helps = bool(losses[1] < losses[0])
    if not helps:
        restore(gated.host, before)
    return helps


def _judged(gated: GatedModel, calibration: Calibration) -> Tensor | None:
    if calibration.loss is None:
        return None
    return mean_loss(gated, calibration.pairs(calibration.judge), calibration.loss)


@torch.no_grad()
def reestimate(model: nn.Module, batches: Batches) -> None:
    """Replace running means and variances by those over these batches. Modes and momenta are left as they were."""
    norms = _norms(model)
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all batches
            norm.train()
        for inputs, _ in batches:
            call(model, inputs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training


def statistics_of(model: nn.Module) -> list[Tensor]:
    """Return copies of what :func:`reestimate` replaces."""
    return [buffer.clone() for norm in _norms(model) for buffer in norm.buffers(recurse=False)]


@torch.no_grad()
def restore(model: nn.Module, statistics: list[Tensor]) -> None:
    """Put back what :func:`statistics_of` returned."""
    buffers = [buffer for norm in _norms(model) for buffer in norm.buffers(recurse=False)]
    for buffer, saved in zip(buffers, statistics, strict=True):
        buffer.copy_(saved)


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Batches, loss: Loss) -> Tensor:
    """Return the mean loss over batches in evaluation mode."""
    with evaluation_mode(model):
        losses = [loss(call(model, inputs), targets) for inputs, targets in batches]
    return torch.stack(losses).mean()


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]
