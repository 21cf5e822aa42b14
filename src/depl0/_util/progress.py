"""Progress of long calls, shown in one line on stderr or passed to a listener, and requests to stop them.

A signal sets a flag, and the work ends at the next check of that flag.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias, final

EVERY_SECONDS = 0.2
"""minimum interval between two updates of the line"""

Listener: TypeAlias = Callable[[int, int], None]
"""(finished steps, total steps)"""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(done: int, steps: int) -> None:
    """Report the number of finished steps to the listener, if there is one, and stop here if a signal requested it."""
    listener = _listener.get()
    if listener is not None:
        listener(done, steps)
    check_stop()


@contextmanager
def progress_listener(listener: Listener) -> Iterator[None]:
    """Pass progress reported within the context to a listener. Only the innermost listener receives it.

    >>> with progress_listener(lambda done, steps: print(f"{done} of {steps}")):
    ...     report_progress(1, 2)
    1 of 2
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@final
class ProgressLine:
    """Show the stages of a long call on stderr, unless ``quiet`` is set.

    On a terminal, a single line is rewritten in place and cleared at the end. Within the context it shows the progress
    passed to :func:`report_progress`. In logs and notebooks, every stage has a line of its own with its duration.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = not quiet and self._stream.isatty()
        self._logged = not quiet and not self._stream.isatty()
        self._start = time.monotonic()
        self._phase, self._found, self._last, self._width = "", "", 0.0, 0
        self._listening = progress_listener(self.step)

    def __enter__(self) -> ProgressLine:
        self._listening.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.__exit__(None, None, None)
        self._end_stage()
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def phase(self, text: str) -> None:
        """Start a new stage, for instance ``"scoring"``."""
        self._end_stage()
        self._phase, self._start, self._last = text, time.monotonic(), 0.0
        self._write(f"{text} …")

    def result(self, text: str) -> None:
        """Append the result of the current stage to its line."""
        self._found = f": {text}"

    def _end_stage(self) -> None:
        if self._logged and self._phase:
            seconds = time.monotonic() - self._start
            self._stream.write(f"depl0: {self._phase} ({seconds:.0f} s){self._found}\n")
            self._stream.flush()
        self._phase = self._found = ""

    def step(self, done: int, steps: int) -> None:
        """Update the number of finished steps and the estimated remaining time."""
        passed = time.monotonic() - self._start
        self._write(f"{self._phase} {done}/{steps}, {passed / max(done, 1) * (steps - done):.0f} s left at most")

    def _write(self, text: str) -> None:
        now = time.monotonic()
        if not self._shown or now - self._last < EVERY_SECONDS:
            return
        self._last = now
        text = f"depl0: {text}"
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = max(self._width, len(text))


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""sent by Ctrl-C, by schedulers, by a closed terminal, and by Slurm's ``--signal=USR1@60``"""


END_WITH_PARENT = "DEPL0_END_WITH_PARENT"
"""environment variable of a process that must stop when its parent dies"""


class StopRequested(BaseException):
    """Raised to stop the work in progress. Not an ``Exception``, so that error handlers do not catch it."""


@final
@dataclass
class _Request:
    owner: int | None = None
    """ID of the process that handles signals; its forked workers inherit the handlers"""
    is_requested: bool = False
    deferred: bool = False


_request = _Request()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Install signal handlers.

    Nested calls and calls outside of the main thread have no effect. A second Ctrl-C ends a single process immediately.
    Ranks may receive every signal twice, from the launcher and from the terminal, so they always finish their step. A
    rank also stops when its launcher has died.
    """
    if _request.owner is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    # An ignored SIGHUP (nohup) stays ignored. Background jobs of a shell ignore SIGINT, but a run must handle it.
    wanted = [number for number in numbers if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _ask) for number in wanted}
    _request.owner, _request.is_requested = os.getpid(), False
    if {"TORCHELASTIC_RUN_ID", END_WITH_PARENT} & os.environ.keys() and sys.platform == "linux":
        _end_with_parent()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _request.owner, _request.is_requested = None, False


@contextmanager
def stop_deferred() -> Iterator[None]:
    """Suspend :func:`check_stop` within the context. The caller checks :func:`stop_requested`, and saves first."""
    before, _request.deferred = _request.deferred, True
    try:
        yield
    finally:
        _request.deferred = before


def stop_requested() -> bool:
    """Return True if a signal has requested this process to stop."""
    return _request.is_requested


def check_stop() -> None:
    """Raise :class:`StopRequested` if a signal has requested this process to stop."""
    if _request.is_requested and not _request.deferred:
        raise StopRequested


def _ask(number: int, frame: Any) -> None:
    if os.getpid() != _request.owner:  # a worker ends with its parent, or on its request
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    if _request.is_requested and number == signal.SIGINT and os.environ.get("WORLD_SIZE", "1") == "1":
        raise StopRequested
    is_first, _request.is_requested = not _request.is_requested, True
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
