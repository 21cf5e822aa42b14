"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_flushed(path: Path, data: bytes) -> None:
    """Write a file, and return when it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes) -> None:
    """Write a whole file or none: aside, flushed, then renamed."""
    part = path.with_name(path.name + ".part")
    try:
        write_flushed(part, data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
