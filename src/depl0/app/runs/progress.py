"""Progress display of a run: a live display on a terminal, plain lines elsewhere, or nothing if quiet.

All of it is written to stderr. stdout is for the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from depl0._util.io import append
from depl0._util.progress import progress_listener
from depl0.app.table import printable
from depl0.app.tasks import ACCURACY, Metric

EVERY_SECONDS = 30.0
"""minimum interval between two lines within an epoch"""


class Reporter:
    """Receives the progress of a run and shows nothing; subclasses override its methods."""

    def note(self, text: str) -> None:
        """Show a message once."""

    def plan(self, steps: dict[str, int]) -> None:
        """Receive the phases of a run, in their order, with the number of steps of each."""

    def begin(self, phase: str, epochs: int, steps: int, done: int, metric: Metric = ACCURACY) -> None:
        """Start a phase, ``done`` of whose steps were done before; ``metric`` is the metric of its epochs."""

    def step(self) -> None:
        """Record one finished training step."""

    def progress(self, line: dict[str, Any]) -> None:
        """Report the position within an epoch, the learning rate, and loss and metric on the training images so far."""

    def epoch(self, line: dict[str, Any]) -> None:
        """Report a finished epoch; ``line`` is its entry in metrics.jsonl."""

    def end(self) -> None:
        """End the phase, finished or interrupted."""


def make_reporter(quiet: bool = False) -> Reporter:
    """Return the reporter that suits stderr."""
    if quiet:
        return Reporter()
    return Live() if sys.stderr.isatty() else Plain()


@contextmanager
def shown_as(reporter: Reporter, phase: str) -> Iterator[None]:
    """Show progress of the library (:func:`depl0._util.progress.report_progress`) within the context as one phase."""

    def listen(done: int, steps: int) -> None:
        if done == 1:
            reporter.begin(phase, 1, steps, 0)
        reporter.step()

    try:
        with progress_listener(listen):
            yield
    finally:
        reporter.end()


def to_stderr(text: str) -> None:
    """Print a line."""
    print(printable(text), file=sys.stderr, flush=True)


@final
class Plain(Reporter):
    """Writes one line per note and epoch, and further lines at intervals within long epochs.

    Args:
        write: writes a line.
        shown: another reporter, which receives everything too.
    """

    def __init__(self, write: Callable[[str], None] = to_stderr, shown: Reporter | None = None) -> None:
        self._write, self._shown = write, shown or Reporter()
        self._phase, self._epochs, self._start, self._metric = "", 0, 0.0, ACCURACY
        self._first_epoch: int | None = None
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        """Write a line."""
        self._line(text)
        self._shown.note(text)

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(text)

    def plan(self, steps: dict[str, int]) -> None:
        """Pass on the phases."""
        self._shown.plan(steps)

    def begin(self, phase: str, epochs: int, steps: int, done: int, metric: Metric = ACCURACY) -> None:
        """Record the start time of the phase."""
        self._phase, self._epochs, self._metric = phase, epochs, metric
        self._start, self._first_epoch = time.monotonic(), None
        self._shown.begin(phase, epochs, steps, done, metric)

    def step(self) -> None:
        """Pass on a step."""
        self._shown.step()

    def progress(self, line: dict[str, Any]) -> None:
        """Write a line if enough time has passed since the last one."""
        if time.monotonic() - self._last >= EVERY_SECONDS:
            self._line(f"{self._phase} {describe_step(line, self._metric)}")
        self._shown.progress(line)

    def epoch(self, line: dict[str, Any]) -> None:
        """Write the epoch and the time left."""
        if self._first_epoch is None:
            self._first_epoch = line["epoch"] - 1
        done, left = line["epoch"] - self._first_epoch, self._epochs - line["epoch"]
        seconds = (time.monotonic() - self._start) / max(done, 1) * left
        remaining = f"  {timedelta(seconds=round(seconds))} left" if left else ""
        self._line(f"{self._phase} {line['epoch']}/{self._epochs}  {describe(line, self._metric)}{remaining}")
        self._shown.epoch(line)

    def end(self) -> None:
        """Pass on the end of the phase."""
        self._shown.end()


def logged(shown: Reporter, path: Path) -> Reporter:
    """Return a reporter that also writes a line with a timestamp to a log file for each note and epoch."""

    def write(text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        append(path, "".join(f"{stamp}  {line}\n" for line in text.splitlines()).encode())

    return Plain(write, shown)


@final
class Live(Reporter):
    """One progress bar for the whole run, with its phases and the numbers of the epoch so far, or of the last one.

    The bar is removed between two phases and continues where it was.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._metric = ACCURACY
        self._steps: dict[str, int] = {}
        self._phase = ""

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        console = self._progress.console if self._progress else self._console
        console.print(printable(text), highlight=False, markup=False)

    def plan(self, steps: dict[str, int]) -> None:
        """Record the phases that the bar covers."""
        self._steps, self._phase = dict(steps), ""

    def begin(self, phase: str, epochs: int, steps: int, done: int, metric: Metric = ACCURACY) -> None:
        """Show the bar; phases before this one are ticked off."""
        self.end()
        names = list(self._steps)
        if phase not in names:  # as recovery, whose steps are known only now
            names.insert(names.index(self._phase) + 1 if self._phase in names else 0, phase)
        self._steps = {name: epochs * steps if name == phase else self._steps[name] for name in names}
        self._phase, self._metric = phase, metric
        now = names.index(phase)
        marks = ["✓"] * now + ["▸"] + [" "] * (len(names) - now - 1)
        shown = "  ".join(f"{mark} {name}" for mark, name in zip(marks, names, strict=True))
        numbers = TextColumn("{task.fields[numbers]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        columns = (TextColumn("{task.description}"), BarColumn(24), TaskProgressColumn(), TimeRemainingColumn())
        # A new bar for each phase: the time left is estimated from the steps of this phase alone.
        self._progress = Progress(*columns, numbers, console=self._console, transient=True, expand=True)
        before = sum(self._steps[name] for name in names[:now])
        total = max(sum(self._steps.values()), 1)
        self._task = self._progress.add_task(shown, total=total, completed=before + done, numbers="")
        self._progress.start()

    def step(self) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def progress(self, line: dict[str, Any]) -> None:
        """Show the position within the epoch."""
        if self._progress is not None:
            self._progress.update(self._task, numbers=describe_step(line, self._metric))

    def epoch(self, line: dict[str, Any]) -> None:
        """Show the epoch's numbers."""
        if self._progress is not None:
            self._progress.update(self._task, numbers=f"epoch {line['epoch']}  {describe(line, self._metric)}")

    def end(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def describe(line: dict[str, Any], metric: Metric = ACCURACY) -> str:
    """Format the most important numbers of an epoch in one line."""
    held_out = f"validation_{metric.name}"
    shown = f"validation {metric.label}" if held_out in line else metric.label
    value = line[held_out if held_out in line else f"test_{metric.name}"]
    parts = [f"loss {line['loss']:.3f}", f"{shown} {metric.show(value)}"]
    if line.get("expected") and line.get("kept"):
        parts.append(f"MACs expected {line['expected']['macs_share']:.1%} kept {line['kept']['macs_share']:.1%}")
    return "  ".join(parts)


def describe_step(line: dict[str, Any], metric: Metric = ACCURACY) -> str:
    """Format the position within an epoch in one line.

    >>> describe_step({"epoch": 2, "step": 40, "steps": 390, "lr": 0.05, "loss": 1.2, "train_accuracy": 55.0})
    'epoch 2 step 40/390  loss 1.200  accuracy 55.00 % (training)  lr 0.05'
    """
    value = metric.show(line[f"train_{metric.name}"])
    numbers = f"loss {line['loss']:.3f}  {metric.label} {value} (training)  lr {line['lr']:.3g}"
    return f"epoch {line['epoch']} step {line['step']}/{line['steps']}  {numbers}"
