"""Execution of a network in training: number of threads, and memory layout of its weights.

OpenMP threads wait for each other after every operation. If another process holds one of their cores, a small
operation waits for milliseconds, and a tiny network trains many times slower than on one thread. Small steps therefore
run on one thread. For larger ones, ``depl0.__main__`` lets waiting threads sleep instead of spin (OMP_WAIT_POLICY).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MACS_PER_THREAD = 250_000_000
"""multiply-accumulates of one forward pass that occupy one thread; with fewer, synchronisation costs too much"""
EXPLICIT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""environment variables by which users set the number of threads themselves"""


def threads_for(macs: float, available: int) -> int:
    """Return the number of threads for forward passes with this number of multiply-accumulates.

    >>> [threads_for(macs, available=4) for macs in (1e6, 5e8, 7.6e8, 1e12)]
    [1, 2, 3, 4]
    """
    return max(1, min(available, int(macs // MACS_PER_THREAD)))


@contextmanager
def threads_by_work() -> Iterator[Callable[[float], None]]:
    """Yield a function that sets the number of CPU threads for forward passes of this many multiply-accumulates.

    The number is restored afterwards. It never changes if the user has set it, by ``OMP_NUM_THREADS`` or, within the
    context, by ``torch.set_num_threads``.
    """
    available = chosen = torch.get_num_threads()
    is_users = any(name in os.environ for name in EXPLICIT)

    def choose(macs: float) -> None:
        nonlocal chosen
        if not is_users and torch.get_num_threads() == chosen:
            chosen = threads_for(macs, available)
            torch.set_num_threads(chosen)

    try:
        yield choose
    finally:
        if torch.get_num_threads() == chosen != available:
            torch.set_num_threads(available)


# -- memory layout ---------------------------------------------------------------------------------------------------


def set_channels_last(model: nn.Module) -> nn.Module:
    """Convert the weights of two-dimensional convolutions to channels last, in place. Parameters stay the same.

    Convolutions then produce channels-last feature maps too. The two layouts round differently.
    """
    return _set_layout(model, torch.channels_last)


def set_contiguous(model: nn.Module) -> nn.Module:
    """Convert weights to the contiguous layout of a network loaded from a file, in place."""
    return _set_layout(model, torch.contiguous_format)


@torch.no_grad()
def _set_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return model


@torch.no_grad()
def match_state_layout(optimizer: Any) -> None:
    """Convert an optimizer's state to the layout of its parameters.

    Files store it contiguous, and fused steps do not check.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
