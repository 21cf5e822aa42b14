"""File access: atomic writes that survive a power loss, size-limited reads, and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from depl0.errors import InputError

MAX_TEXT = 1 << 20
"""bytes of a recipe or another handwritten text file"""
MAX_JSON = 1 << 24
"""bytes of a JSON file, whose objects need up to 40 times as much memory; that of a million kept channels has 8 MB"""
MAX_LINES = 1 << 28
"""bytes of a file of JSON lines: 120 epochs of ResNet-50 have 15 MB"""
MAX_VALUES = 1 << 36
"""bytes of a checkpoint's tensors"""


class Unreadable(OSError):
    """Raised if a file is not a regular file or exceeds its size limit; the message names the reason."""


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a regular file up to a size limit. Pipes and devices are rejected without blocking."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Unreadable(f"it has {size:,} bytes, more than the {limit:,} that are read")
        return file.read(size)


def check_values(path: Path, limit: int) -> None:
    """Raise an error unless a safetensors file is a regular file whose size and header are within their limits."""
    with open_regular(path) as file:
        size, header = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size > limit:
        raise Unreadable(f"it has {size:,} bytes, more than the {limit:,} that are read")
    if header > MAX_JSON:
        raise Unreadable(f"its list of tensors has {header:,} bytes, more than the {MAX_JSON:,} that are read")


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Pipes and devices are rejected without blocking."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable("it is a pipe or a device, not a file")
        yield file


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Read a JSON file up to a size limit."""
    return json.loads(read_bounded(path, limit))


def append(path: Path, data: bytes) -> None:
    """Append to a file and flush it to disk."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_flushed(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and flush it to disk."""
    with path.open("xb") as file:  # exclusive mode does not follow a symbolic link either
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def temp_path(path: Path) -> Path:
    """Return an unpredictable name in the same folder."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file atomically: to a temporary name, flushed, renamed, and the folder flushed. A link is replaced."""
    part = temp_path(path)
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


def cache_folder() -> Path:
    """Return the cache folder: DEPL0_CACHE, or ``depl0`` in XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("DEPL0_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depl0"


def flush_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, if the system supports it."""
    with suppress(OSError):  # some systems cannot open folders, and some file systems cannot flush them
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def checksum(header: dict[str, Any], values: bytes | Path) -> str:
    """Return the SHA-256 over the header's other fields in a canonical form and the values, or a file with them.

    >>> checksum({"step": 3, "sha256": "not counted"}, b"values") == checksum({"step": 3}, b"values")
    True
    """
    fields = {key: value for key, value in header.items() if key != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    digest = _digest_of_file(values) if isinstance(values, Path) else hashlib.sha256(values).digest()
    return hashlib.sha256(hashlib.sha256(canonical).digest() + digest).hexdigest()


def _digest_of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.digest()
