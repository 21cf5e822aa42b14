"""Files that are whole or not there, also after a loss of power."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from depl0.errors import InputError


def write_flushed(path: Path, data: bytes) -> None:
    """Write a file, and return when it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes) -> None:
    """Write a whole file or none: aside, flushed, renamed, and the new name flushed too."""
    part = path.with_name(path.name + ".part")
    try:
        write_flushed(part, data)
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, IsADirectoryError):
            raise InputError(
                f"{path} cannot be written: there is a folder in its place.", hint="move the folder out of the way."
            ) from error
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, where the system can say so."""
    with suppress(OSError):  # some systems do not open folders, some file systems do not flush them
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
