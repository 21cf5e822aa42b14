"""A process that dies at its k-th file operation: between any two of them, and in the middle of a write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}


class Counter:
    """Counts the operations that change files below a folder, and ends the process at one of them."""

    def __init__(self, below: Path, die_at: int | None) -> None:
        self.count = 0
        self._below, self._die_at = str(below), die_at

    def tick(self) -> None:
        self.count += 1
        if self.count == self._die_at:
            os._exit(99)

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
