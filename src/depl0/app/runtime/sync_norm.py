"""Batch norm over the batch of all processes, for as long as a phase lasts.

No module is replaced: the batch norms get another ``forward`` for a while, with the same parameters and statistics.
On a GPU it is that of PyTorch's own ``SyncBatchNorm``. Elsewhere, where that one does not run, it is written with plain
tensor operations, and runs wherever the processes can sum a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from depl0.errors import InputError


@contextmanager
def synced_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Let the batch norms of a network see the images of all processes, if wanted and if there are several."""
    norms = _batch_norms(model) if wanted and dist.is_available() and dist.is_initialized() else []
    for norm in norms:
        norm.__dict__["forward"] = MethodType(_forward, norm)
    try:
        yield
    finally:
        for norm in (*norms, *(_batch_norms(model) if norms else ())):  # a network that was rebuilt has new ones
            norm.__dict__.pop("forward", None)


def check_norms(model: nn.Module) -> None:
    """Refuse a network with batch norms that compute something of their own."""
    _batch_norms(model)


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    norms = []
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue
        if type(module).forward is not _BatchNorm.forward:
            raise InputError(
                f"batch norm cannot be synchronised: {name} is a {type(module).__name__}, which does something of "
                "its own.",
                hint="leave --sync-bn out.",
            )
        norms.append(module)
    return norms


def _forward(norm: _BatchNorm, images: Tensor) -> Tensor:
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, images)
        return plain
    norm._check_input_dim(images)
    if _has_kernels_of_torch(images):
        return nn.SyncBatchNorm.forward(_torch_view(norm), images)  # the view's own forward would be this one
    x = images.to(torch.promote_types(images.dtype, torch.float32))  # (batch, channels, …)
    others, shape = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2))
    count = dist.get_world_size() * (x.numel() // x.shape[1])  # all processes have equal shares of a batch
    if count < 2:
        raise ValueError("Expected more than 1 value per channel when training")
    mean = _sum(x.sum(others)) / count
    centred = x - mean.view(shape)
    variance = _sum(centred.square().sum(others)) / count
    _remember(norm, mean.detach(), variance.detach() * (count / (count - 1)))
    y = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(images.dtype)


def _has_kernels_of_torch(images: Tensor) -> bool:
    return images.device.type == "cuda"


class _SyncBatchNorm(nn.SyncBatchNorm):
    process_group = None  # all processes


def _torch_view(norm: _BatchNorm) -> nn.SyncBatchNorm:
    """Return a batch norm as PyTorch's synchronised one: another class over the very same state.

    The state is shared, not copied, because gates replace weight and bias for the time of a call.
    """
    view = object.__new__(_SyncBatchNorm)
    view.__dict__ = norm.__dict__
    return view


@torch.no_grad()
def _remember(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics as batch norm does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    share: Any = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
    for running, value in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.mul_(1 - share).add_(value.to(running.dtype) * share)


def _sum(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """The sum over all processes; the gradient of each is the sum of everybody's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total
