"""How far a long call is: told by what takes long, shown in one line on stderr or by whoever listens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO, TypeAlias, final

EVERY_SECONDS = 0.2
"""between two changes of the line"""

Listener: TypeAlias = Callable[[int, int], None]
"""(steps done, all steps)"""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(done: int, steps: int) -> None:
    """Report the number of finished steps to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(done, steps)


@contextmanager
def progress_listener(listener: Listener) -> Iterator[None]:
    """Pass progress reported inside to a listener; only the innermost one receives it.

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
    """The stages of a long call on stderr, unless ``quiet`` is set.

    On a terminal it is one line that is rewritten in place, and wiped out at the end; inside the context it shows what
    :func:`report_progress` receives. In logs and notebooks every stage has a line of its own, with its seconds.
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
        """Say what begins now, for instance ``"scoring"``."""
        self._end_stage()
        self._phase, self._start, self._last = text, time.monotonic(), 0.0
        self._write(f"{text} …")

    def result(self, text: str) -> None:
        """Add what the current stage found to its line."""
        self._found = f": {text}"

    def _end_stage(self) -> None:
        if self._logged and self._phase:
            seconds = time.monotonic() - self._start
            self._stream.write(f"depl0: {self._phase} ({seconds:.0f} s){self._found}\n")
            self._stream.flush()
        self._phase = self._found = ""

    def step(self, done: int, steps: int) -> None:
        """Say how far the phase is; the time left follows from that."""
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
