"""One line on stderr that says what a long call is doing."""

from __future__ import annotations

import sys
import time
from typing import TextIO, final

EVERY_SECONDS = 0.2
"""between two changes of the line"""


@final
class ProgressLine:
    """A line that is rewritten in place; nothing is written where stderr is not a terminal, or ``quiet`` is set.

    Use it as a context: the line is wiped out at the end.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = not quiet and self._stream.isatty()
        self._start = time.monotonic()
        self._phase, self._last, self._width = "", 0.0, 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def phase(self, text: str) -> None:
        """Say what begins now, for instance ``"scoring"``."""
        self._phase, self._start, self._last = text, time.monotonic(), 0.0
        self._write(f"{text} …")

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
