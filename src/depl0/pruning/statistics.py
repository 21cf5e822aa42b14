"""The statistics of batch norms, measured anew where closing gates has moved what they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from depl0._host import evaluation_mode

Batches = Iterable[tuple[Tensor, Tensor]]


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
        for images, _ in batches:
            model(images)
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
def mean_loss(model: nn.Module, batches: Batches, loss: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """Return the mean loss over batches in evaluation mode."""
    with evaluation_mode(model):
        losses = [loss(model(images), labels) for images, labels in batches]
    return torch.stack(losses).mean()


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]
