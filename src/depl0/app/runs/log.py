"""``log.txt``: what people see of a run, with the time, also where nobody was looking."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, final

from depl0.app.runs.progress import EVERY_SECONDS, Reporter, describe, describe_step
from depl0.app.tasks import ACCURACY, Metric


@final
class Logged(Reporter):
    """Tells another reporter everything, and writes it down: notes, epochs, and a line every so often in between."""

    def __init__(self, shown: Reporter, path: Path) -> None:
        self._shown, self._path = shown, path
        self._phase, self._epochs, self._metric = "", 0, ACCURACY
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        """Write and say something."""
        self._write(text)
        self._shown.note(text)

    def begin(self, phase: str, epochs: int, steps: int, done: int, metric: Metric = ACCURACY) -> None:
        """Write that a phase begins."""
        self._phase, self._epochs, self._metric = phase, epochs, metric
        if epochs:
            self._write(f"{phase}: {epochs} epochs of {steps:,} steps" + (f", {done:,} of them done" if done else ""))
        self._shown.begin(phase, epochs, steps, done, metric)

    def step(self) -> None:
        """Pass a step on."""
        self._shown.step()

    def progress(self, line: dict[str, Any]) -> None:
        """Write a line inside an epoch, every so often."""
        if time.monotonic() - self._last >= EVERY_SECONDS:
            self._write(f"{self._phase} {describe_step(line, self._metric)}")
        self._shown.progress(line)

    def epoch(self, line: dict[str, Any]) -> None:
        """Write an epoch."""
        self._write(f"{self._phase} {line['epoch']}/{self._epochs}  {describe(line, self._metric)}")
        self._shown.epoch(line)

    def end(self) -> None:
        """Pass the end of a phase on."""
        self._shown.end()

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{stamp}  {line}\n" for line in text.splitlines())
