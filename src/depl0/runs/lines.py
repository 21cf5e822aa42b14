"""A file of JSON lines that grows during a run and is cut where a resumed run takes up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from depl0._atomic import write_whole


class Lines:
    """Appends to, reads and cuts one file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: dict[str, Any]) -> None:
        """Append one line; a checkpoint counts on it, so it goes to disk at once."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Return all lines."""
        return [json.loads(line) for line in self._text()]

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._text())

    def cut(self, count: int) -> None:
        """Forget the lines after the first ``count``: they come from steps that are done again."""
        if self.path.exists():
            write_whole(self.path, "".join(self._text(keepends=True)[:count]).encode())

    def _text(self, keepends: bool = False) -> list[str]:
        return self.path.read_text().splitlines(keepends=keepends) if self.path.exists() else []
