"""Files: whole or not there after a loss of power, read up to a size, and checksums of two that belong together."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from depl0.errors import InputError

MAX_TEXT = 1 << 20
"""bytes of a recipe or another text that a person may have written"""
MAX_JSON = 1 << 28
"""bytes of a JSON file: the largest, of a network with a million channels, has less than a tenth"""
MAX_LINES = 1 << 30
"""bytes of a file of JSON lines: 120 epochs of ResNet-50 have 15 MB"""


_PIECE = 1 << 20


class TooLarge(Exception):
    """A file is larger than it may be; the message says both sizes."""


def check_size(path: Path, limit: int) -> None:
    """Raise if a file is larger than it may be; OSError if there is none."""
    size = path.stat().st_size
    if size > limit:
        raise TooLarge(f"it has {size:,} bytes, more than the {limit:,} that are read")


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file that is no larger than it may be."""
    check_size(path, limit)
    content = bytearray()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > limit:  # a pipe, or a file that grows
                raise TooLarge(f"it has more than the {limit:,} bytes that are read")
    return bytes(content)


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


def checksum(header: dict[str, Any], values: bytes) -> str:
    """Return the SHA-256 of both files: of the header's other fields in a canonical form, and of the values.

    >>> checksum({"step": 3, "sha256": "not counted"}, b"values") == checksum({"step": 3}, b"values")
    True
    """
    fields = {key: value for key, value in header.items() if key != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(hashlib.sha256(canonical).digest() + hashlib.sha256(values).digest()).hexdigest()
