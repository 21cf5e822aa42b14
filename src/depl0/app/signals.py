"""Signals that stop a command: they set a flag, and the work ends at the next check of that flag."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from depl0._util.progress import StopRequested, request_stop, stop_requested

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""sent by Ctrl-C, by schedulers, by a closed terminal, and by Slurm's ``--signal=USR1@60``"""
END_WITH_PARENT = "DEPL0_END_WITH_PARENT"
"""environment variable of a process that must stop when its parent dies"""

_owner: int | None = None
"""ID of the process that handles signals; its forked workers inherit the handlers"""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Install signal handlers.

    Nested calls and calls outside of the main thread have no effect. A second Ctrl-C ends a single process immediately.
    Ranks may receive every signal twice, from the launcher and from the terminal, so they always finish their step. A
    rank also stops when its launcher has died.
    """
    global _owner
    if _owner is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    # An ignored SIGHUP (nohup) stays ignored. Background jobs of a shell ignore SIGINT, but a run must handle it.
    wanted = [number for number in numbers if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _ask) for number in wanted}
    _owner = os.getpid()
    request_stop(False)
    if {"TORCHELASTIC_RUN_ID", END_WITH_PARENT} & os.environ.keys() and sys.platform == "linux":
        _end_with_parent()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _owner = None
        request_stop(False)


def _ask(number: int, frame: Any) -> None:
    if os.getpid() != _owner:  # a worker ends with its parent, or on its request
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    if stop_requested() and number == signal.SIGINT and os.environ.get("WORLD_SIZE", "1") == "1":
        raise StopRequested
    is_first = not stop_requested()
    request_stop()
    if is_first and os.environ.get("RANK", "0") == "0":
        try:
            os.write(2, f"{signal.Signals(number).name}: stopping as soon as possible\n".encode())
        except OSError:  # the terminal is closed, and further output must not raise an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _end_with_parent() -> None:
    """Request SIGTERM when the parent (torchrun, or a study's worker) dies, so that no orphan process is left."""
    import ctypes

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
