"""Re-estimation of batch-norm statistics after the closing of gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.distributed import all_reduce_mean, broadcast_buffers
from depl0._util.random import isolated_random
from depl0._util.user_code import call_of_user
from depl0.gated import GatedModel
from depl0.host.inputs import output_tensors
from depl0.host.network import evaluation_mode
from depl0.search.calibration import Batches, Calibration, call
from depl0.search.recovery.self_distillation import state_copy

_LEAST_SHARE = 1e-4
"""Fraction of its former variance below which a channel counts as constant."""


def renew_statistics(gated: GatedModel, calibration: Calibration) -> bool:
    """Re-estimate batch-norm statistics for the current gates; return True if the new ones are kept.

    With a loss they are kept if the loss on other batches falls; without a loss they are always kept.
    """
    if not _norms(gated.host):
        return False
    before, loss_before = state_copy(gated.host), judged(gated, calibration)
    reestimate(gated, calibration.pairs(calibration.statistics))
    broadcast_buffers(gated)
    loss_after = judged(gated, calibration)
    helps = loss_before is None or loss_after is None or loss_after < loss_before
    if not helps:
        gated.host.load_state_dict(before)
    return helps


@torch.no_grad()
def judged(gated: GatedModel, calibration: Calibration) -> float | None:
    """Return the mean loss in evaluation mode on the batches for the decision, over all ranks; None without a loss."""
    if calibration.loss is None:
        return None
    with evaluation_mode(gated):
        losses = [
            call_of_user("loss", "while gates were frozen", calibration.loss, call(gated, inputs), targets)
            for inputs, targets in calibration.pairs(calibration.judge)
        ]
    return float(all_reduce_mean(torch.stack(losses).mean()))


@torch.no_grad()
def reestimate(model: nn.Module, batches: Batches) -> None:
    """Replace running means and variances by those over these batches. Modes and momenta are not changed."""
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


@torch.no_grad()
def absorb_statistics(model: nn.Module, inputs: Iterable[Any]) -> None:
    """Re-estimate running means and variances, and change scales and shifts so that the outputs stay the same.

    The outputs of refitted layers vary less than the statistics of their batch norms. Training normalises by the
    batch's own statistics, so it would start from another network than the refitted one. No norm is changed if the
    network's outputs would change, because one of them uses its scale and shift in another way.
    """
    seen = {norm: _Seen() for norm in _rewritable_norms(model)}
    if not seen:
        return
    handles = [norm.register_forward_pre_hook(own.add, with_kwargs=True) for norm, own in seen.items()]
    first: tuple[Any, Any] | None = None
    with evaluation_mode(model), isolated_random(0):
        try:
            for batch in inputs:
                outputs = call(model, batch)
                first = (batch, outputs) if first is None else first
        finally:
            for handle in handles:
                handle.remove()
    before = state_copy(model)
    for norm, own in seen.items():
        if own.count:
            _take_up(norm, *own.mean_and_variance())
    with evaluation_mode(model), isolated_random(0):
        if first is not None and not _agree(call(model, first[0]), first[1]):
            model.load_state_dict(before)


@final
class _Seen:
    """The first two moments of a norm's inputs."""

    def __init__(self) -> None:
        self.count, self._total, self._squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        precise = x.double() if x.device.type != "mps" else x.float()
        axes = [axis for axis in range(x.dim()) if axis != 1]
        self._total = self._total.to(precise) + precise.sum(axes)
        self._squares = self._squares.to(precise) + precise.square().sum(axes)
        self.count += x.numel() // x.shape[1]

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        mean = self._total / self.count
        return mean, (self._squares / self.count - mean.square()).clamp_min(0)


def _rewritable_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the batch norms whose scale and shift are stored, not computed."""
    return [
        norm
        for norm in _norms(model)
        if isinstance(norm, nn.modules.batchnorm._BatchNorm)
        and isinstance(norm._parameters.get("weight"), nn.Parameter)
        and isinstance(norm._parameters.get("bias"), nn.Parameter)
    ]


def _take_up(norm: nn.modules.batchnorm._NormBase, mean: Tensor, variance: Tensor) -> None:
    """Set a norm's statistics, and adapt its scale and shift so that it computes the same outputs."""
    before_mean, before_variance = norm.running_mean, norm.running_var
    assert before_mean is not None and before_variance is not None
    mean, variance = mean.to(before_mean), variance.to(before_variance)
    variance = torch.where(variance > _LEAST_SHARE * before_variance, variance, before_variance)  # a constant channel
    factor = norm.weight / (before_variance + norm.eps).sqrt()
    norm.bias.add_(factor * (mean - before_mean))
    norm.weight.copy_(factor * (variance + norm.eps).sqrt())
    before_mean.copy_(mean)
    before_variance.copy_(variance)


def _agree(found: Any, wanted: Any) -> bool:
    """Return True if outputs are equal up to rounding."""
    for a, b in zip(output_tensors(found), output_tensors(wanted), strict=True):
        rounding = 1e-3 if b.dtype in (torch.float32, torch.float64) else 0.05
        if b.is_floating_point() and b.numel() and not bool((a - b).float().norm() <= rounding * b.float().norm()):
            return False
    return True


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]
