"""Unpack a downloaded ``.tar.gz`` without trusting it."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, final

from depl0.errors import DataError

MAX_BYTES = 1 << 30
MAX_MEMBERS = 1000
MAX_HEADER_BYTES = 1 << 16
"""What describes one member: its header, long names, extended attributes, maps of holes. A block or two is usual."""
_UNFORESEEN = (LookupError, ValueError, ArithmeticError, TypeError, RecursionError)
"""What tarfile runs into in headers that nobody would write: numbers that are none, a map cut short."""
AGAIN = "delete it and download it again from the data set's own site."


def unpack(archive: Path, wanted: str, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> Path:
    """Unpack the folder ``wanted`` of an archive next to the archive, and give its path.

    Only plain files and folders inside the archive's own tree are accepted. Nothing is left behind when something else
    is found, when the archive is damaged, or when it would become larger than allowed.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError(
            f"{archive} cannot be unpacked safely by this version of Python.",
            hint=f"update Python, or unpack it yourself: tar xzf {archive.name}",
        )
    target = archive.parent / wanted
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{wanted}-") as scratch:
            _extract(archive, Path(scratch), max_bytes, max_members)
            unpacked = Path(scratch) / wanted
            if not unpacked.is_dir():
                raise DataError(f"{archive} must hold a folder called {wanted}, but does not.", hint=AGAIN)
            _move(unpacked, target)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, *_UNFORESEEN) as error:
        raise DataError(f"{archive} is damaged or an incomplete copy: {error}.", hint=AGAIN) from error
    except OSError as error:
        raise DataError(
            f"{archive} cannot be unpacked in {archive.parent}: {error.strerror or error}.",
            hint="move it to a folder that can be written to and has room.",
        ) from error
    return target


def _extract(archive: Path, scratch: Path, max_bytes: int, max_members: int) -> None:
    with gzip.open(archive, "rb") as unzipped:
        stream = _Limited(unzipped, archive, max_bytes)
        # "r|" reads from front to back, so that a refused member ends it before the rest is decompressed.
        with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
            for number, member in enumerate(tar, start=1):
                if number > max_members:
                    raise DataError(f"{archive} holds more than {max_members:,} files and is not unpacked.", hint=AGAIN)
                _check(member, archive, max_bytes)
                stream.expect_content()
                tar.extract(member, scratch, filter="data")
                stream.expect_header()


def _check(member: tarfile.TarInfo, archive: Path, max_bytes: int) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or ":" in member.name:
        problem = "would be written outside of its folder"
    elif not (member.isreg() or member.isdir()) or member.issparse():
        problem = "is neither a plain file nor a folder"
    elif member.size > max_bytes:
        problem = f"would have {member.size:,} bytes, more than the {max_bytes:,} allowed"
    else:
        return
    raise DataError(f"{archive} is not unpacked: {member.name!r} in it {problem}.", hint=AGAIN)


def _move(unpacked: Path, target: Path) -> None:
    """Put the whole folder in its place at once. Another process may have done so meanwhile."""
    try:
        os.replace(unpacked, target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(unpacked, ignore_errors=True)


@final
class _Limited:
    """A stream that refuses to give more than so many bytes, in all and for the description of one member.

    tarfile reads and parses a description whole, whatever size it claims, before it gives the member back.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, archive: Path, limit: int) -> None:
        self._stream = stream
        self._archive = archive
        self._limit = limit
        self._left = limit
        self._header_left: int | None = MAX_HEADER_BYTES

    def expect_header(self) -> None:
        """What is read from now on describes a member."""
        self._header_left = MAX_HEADER_BYTES

    def expect_content(self) -> None:
        """What is read from now on is the content of a member."""
        self._header_left = None

    def read(self, size: int) -> bytes:
        """Read at most so many bytes."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise self._refusal(f"it becomes larger than the {self._limit:,} bytes allowed")
        if self._header_left is not None:
            self._header_left -= len(data)
            if self._header_left < 0:
                raise self._refusal(f"the description of a file in it has more than {MAX_HEADER_BYTES:,} bytes")
        return data

    def _refusal(self, problem: str) -> DataError:
        return DataError(f"{self._archive} is not unpacked: {problem}.", hint=AGAIN)
