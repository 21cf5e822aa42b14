"""Files are read up to a size: what is far larger than anything we write is not ours, and would fill the memory."""

from __future__ import annotations

from pathlib import Path

TEXT = 1 << 20
"""bytes of a recipe or another text that a person may have written"""
JSON = 1 << 28
"""bytes of a JSON file: the largest, of a network with a million channels, has less than a tenth"""
LINES = 1 << 30
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
