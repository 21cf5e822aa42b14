"""Checkpoints that are written while training goes on.

A save first copies the state to main memory, which is all that training waits for; one thread then writes the copy, as
whole and as atomic as :func:`~depl0.app.runs.checkpoint.save_checkpoint` does. A kill at any time leaves the checkpoint
before it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, final

from depl0.app.runs.checkpoint import Snapshot, take_snapshot, write_snapshot


@final
class BackgroundSaver:
    """Writes checkpoints of one folder in a thread, one after the other.

    At most one is on its way: a save waits for the one before it, so that no more than two copies of the state are in
    memory. What went wrong in the thread (a full disk) is raised by the next :meth:`save` or :meth:`wait`, as the same
    error that a save in the foreground would have raised.

    >>> import tempfile
    >>> from depl0.app.runs.checkpoint import load_newest
    >>> with tempfile.TemporaryDirectory() as name, BackgroundSaver(Path(name), keep=2) as saver:
    ...     saver.save(7, {"weights": [1.0, 2.0]})
    ...     saver.wait()
    ...     load_newest(Path(name))
    (7, {'weights': [1.0, 2.0]})
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy a state, and return while it is being written. The state may change as soon as this returns."""
        self.wait()
        snapshot = take_snapshot(step, state)
        # Not a daemon: at the end of the program Python waits for it, and a checkpoint is finished rather than lost.
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name=f"checkpoint of step {step}")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is left to be written; raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def is_busy(self) -> bool:
        """Tell whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write_snapshot(self.folder, snapshot, self.keep)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what is being written. Its error is raised only where none is on its way already."""
        if error is None:
            self.wait()
        elif self._thread is not None:
            self._thread.join()
