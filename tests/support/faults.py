"""Faults at exact points of a run: a process is killed, stopped or asked to stop there, every time alike."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}
POINTS = {
    "opening": ("depl0.app.training.prune", "open_data_for"),
    "analysing": ("depl0.app.training.prune", "gated_network"),
    "scoring": ("depl0.app.training.search", "_search_by_scores"),
    "freezing": ("depl0.search.freezing", "select_gates"),
    "extracting": ("depl0.app.training.prune", "_extracted"),
    "finalising": ("depl0.app.training.prune", "finalize"),
    "exporting": ("depl0.export.checked", "read_by_another_process"),
    "step": ("depl0.app.training.loop", "train_step"),
}
"""what a process calls when it comes to a phase; training steps are counted for each phase"""


def fail_at(rank: int, step: int, phase: str, how: int = signal.SIGKILL, below: str = "", parent: bool = False) -> None:
    """Send this process, or its parent, a signal if it is of this rank, when it comes to a phase the ``step``-th time.

    Phases are those above, the training phases ("search", "finetune", "dense"), whose steps are counted, and "write":
    an operation that changes a file ``below`` a folder.
    """
    if int(os.environ.get("RANK", "0")) != rank:
        return
    if phase == "write":
        Counter(Path(below), step, how).install()
        return
    module, name = POINTS.get(phase, POINTS["step"])
    place = importlib.import_module(module)
    original, count = getattr(place, name), 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += phase in POINTS or args[1].name == phase
        if count == step:
            count += 1
            os.kill(os.getppid() if parent else os.getpid(), how)
        return original(*args, **kwargs)

    setattr(place, name, failing)


class Counter:
    """Counts the operations that change files below a folder, and sends this process a signal at one of them."""

    def __init__(self, below: Path, at: int | None = None, how: int = signal.SIGKILL) -> None:
        self.count = 0
        self._below, self._at, self._how = str(below), at, how

    def tick(self) -> None:
        self.count += 1
        if self.count == self._at:
            os.kill(os.getpid(), self._how)

    def install(self) -> None:
        """Watch this process until its end: an audit hook cannot be taken out."""
        sys.addaudithook(self._audit)
        flush, open_path = os.fsync, Path.open

        def fsync(descriptor: int) -> None:
            self.tick()
            flush(descriptor)

        def open_slowly(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = open_path(path, mode, *args, **kwargs)
            return _Slow(file, self) if mode != "r" and str(path).startswith(self._below) else file

        os.fsync, Path.open = fsync, open_slowly  # type: ignore[assignment, method-assign]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not arguments:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if event in ("os.remove", "os.rmdir") or str(arguments[0]).startswith(self._below):
            self.tick()


class _Slow:
    """A file that is written in two halves, each of which reaches the disk."""

    def __init__(self, file: Any, counter: Counter) -> None:
        self._file, self._counter = file, counter

    def write(self, data: Any) -> int:
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            self._file.write(part)
            self._file.flush()
            self._counter.tick()
        return len(data)

    def __enter__(self) -> _Slow:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
