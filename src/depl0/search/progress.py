"""The stages of a long call, shown on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO, final

from depl0._util.progress import progress_listener

EVERY_SECONDS = 0.2
"""minimum interval between two updates of the line"""


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
