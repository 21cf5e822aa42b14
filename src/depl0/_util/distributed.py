"""What several processes of one training have to agree on, through ``torch.distributed`` alone.

Every function is the identity where there is one process, so callers need not ask.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Tell whether this is the process that decides for all."""
    return world_size() == 1 or dist.get_rank() == 0


def all_reduce_mean(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes; all of them call this together."""
    if world_size() == 1:
        return value
    total = value.detach().clone().contiguous()
    dist.all_reduce(total)
    return total / world_size()


def broadcast(value: Tensor) -> Tensor:
    """Return the first process's tensor in all of them; all of them call this together."""
    if world_size() == 1:
        return value
    shared = value.detach().clone().contiguous()
    dist.broadcast(shared, src=0)
    return shared


@torch.no_grad()
def broadcast_parameters(model: nn.Module) -> None:
    """Give all processes the first one's weights."""
    if world_size() > 1:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)


@torch.no_grad()
def broadcast_buffers(model: nn.Module) -> None:
    """Give all processes the first one's statistics: each has seen other data."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
