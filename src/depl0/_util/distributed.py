"""Collective operations between the processes of one training, through ``torch.distributed`` alone.

Every function is the identity with a single process, so callers need no special case.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Return True on rank 0, the process that decides for all."""
    return world_size() == 1 or dist.get_rank() == 0


def all_reduce_mean(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes. All processes must call this together."""
    if world_size() == 1:
        return value
    total = value.detach().clone().contiguous()
    dist.all_reduce(total)
    return total / world_size()


def broadcast(value: Tensor) -> Tensor:
    """Return rank 0's tensor on every rank. All processes must call this together."""
    if world_size() == 1:
        return value
    shared = value.detach().clone().contiguous()
    dist.broadcast(shared, src=0)
    return shared


@torch.no_grad()
def broadcast_parameters(model: nn.Module) -> None:
    """Broadcast the weights of rank 0 to all processes."""
    if world_size() > 1:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)


@torch.no_grad()
def broadcast_buffers(model: nn.Module) -> None:
    """Broadcast the buffers of rank 0 to all processes, because each rank has seen different data."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
