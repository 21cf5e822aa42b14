"""A file of JSON lines that grows during a run, and is put back to what it was where a resumed run takes up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from depl0._util.io import write_whole
from depl0.errors import FormatError


class Lines:
    """Appends to, reads and restores one file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: dict[str, Any]) -> None:
        """Append one line; a checkpoint counts on it, so it goes to disk at once."""
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except IsADirectoryError as error:
            raise self._damaged("it is a folder; a file was expected") from error

    def read(self) -> list[dict[str, Any]]:
        """Return all lines."""
        found = []
        for number, line in enumerate(self.text().splitlines(), start=1):
            value = _object(line)
            if value is None:
                raise self._damaged(f"line {number} is no JSON object")
            found.append(value)
        return found

    def count(self) -> int:
        """Return the number of lines."""
        return self._bytes().count(b"\n")

    def text(self) -> str:
        """Return the whole file, for a checkpoint; nothing where there is no file."""
        try:
            return self._bytes().decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"byte {error.start:,} is no UTF-8") from error

    def restore(self, text: str) -> None:
        """Make the file what it was when :meth:`text` was asked for."""
        if text:
            write_whole(self.path, text.encode())
        elif self.path.is_dir():
            raise self._damaged("it is a folder; a file was expected")
        else:
            self.path.unlink(missing_ok=True)

    def cut(self, count: int) -> int:
        """Forget the lines after the first ``count``: they come from steps that are done again.

        This is for checkpoints that only counted lines. Damaged lines cannot be brought back: they are dropped, and the
        number of those that are missing is returned.
        """
        whole = [line for line in self._bytes().split(b"\n")[:-1][:count] if _object(line) is not None]
        self.restore(b"".join(line + b"\n" for line in whole).decode())
        return count - len(whole)

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except IsADirectoryError as error:
            raise self._damaged("it is a folder; a file was expected") from error
        except OSError as error:
            raise self._damaged(error.strerror or str(error)) from error

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(
            f"{self.path} cannot be used: {reason}.",
            hint="move it out of the way; --resume brings it back from the last checkpoint.",
        )


def _object(line: str | bytes) -> dict[str, Any] | None:
    """Return what a line holds, or None if that is no object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
