"""Choose the number of CPU threads by the size of a training step.

OpenMP threads wait for each other after every operation. If another process holds one of their cores, a small
operation waits for milliseconds, and a tiny network trains many times slower than on one thread. Small steps therefore
run on one thread. For larger ones, ``depl0.__main__`` lets waiting threads sleep instead of spin (OMP_WAIT_POLICY).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

MACS_PER_THREAD = 250_000_000
"""multiply-accumulates of one forward pass that occupy one thread; with fewer, synchronisation costs too much"""
EXPLICIT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""environment variables by which users set the number themselves"""


@dataclass
class _Choice:
    available: int
    current: int


_CHOICE: ContextVar[_Choice | None] = ContextVar("_CHOICE", default=None)


def threads_for(macs: float, available: int) -> int:
    """Return the number of threads for forward passes with this number of multiply-accumulates.

    >>> [threads_for(macs, available=4) for macs in (1e6, 5e8, 7.6e8, 1e12)]
    [1, 2, 3, 4]
    """
    return max(1, min(available, int(macs // MACS_PER_THREAD)))


@contextmanager
def threads_by_work() -> Iterator[None]:
    """Enable :func:`choose_threads` within the context, and restore the number of threads afterwards.

    The commands that train use it. Without it, or if the user set ``OMP_NUM_THREADS``, the number never changes.
    """
    if any(name in os.environ for name in EXPLICIT):
        yield
        return
    before = torch.get_num_threads()
    choice = _Choice(before, before)
    token = _CHOICE.set(choice)
    try:
        yield
    finally:
        _CHOICE.reset(token)
        if torch.get_num_threads() == choice.current != before:
            torch.set_num_threads(before)


def choose_threads(macs: float, device: torch.device) -> None:
    """Set the number of threads for forward passes with this number of multiply-accumulates.

    A number that user code set by ``torch.set_num_threads`` is kept.
    """
    choice = _CHOICE.get()
    if choice is None or device.type != "cpu" or torch.get_num_threads() != choice.current:
        return
    choice.current = threads_for(macs, choice.available)
    torch.set_num_threads(choice.current)
