"""Lock of a run folder: a file lock that dead processes cannot hold, and a file that names the current holder.

The system locks the empty file ``.lock`` for as long as the process lives (``filelock``); it stays in the folder. The
file ``lock`` names process and host for people. It exists only during a run, and has no effect on its own.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from depl0._util.io import atomic_write, read_json
from depl0.errors import InputError

LOCK = ".lock"
HOLDER = "lock"


@dataclass(frozen=True)
class Holder:
    """The process that works in a run folder."""

    pid: int
    host: str
    since: str


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder, which is created if necessary."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise _refusal(folder) from None
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        with _named_in(folder):
            yield
    finally:
        lock.release()


@contextmanager
def _named_in(folder: Path) -> Iterator[None]:
    mine = Holder(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S %z"))
    try:
        atomic_write(folder / HOLDER, (json.dumps(asdict(mine)) + "\n").encode())
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER).unlink()


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"the run folder {folder} cannot be written to: {error.strerror or error}.",
        hint="choose another --out, or make room and give yourself the right to write there.",
    )


def _refusal(folder: Path) -> InputError:
    holder = _read(folder / HOLDER)
    if holder is None:
        who, host = "it has only just begun", socket.gethostname()
    else:
        who, host = f"process {holder.pid} on {holder.host}, since {holder.since}", holder.host
    hint = "wait for it, stop it, or choose another --out."
    if host != socket.gethostname():  # some network disks keep the lock of a dead host
        hint = f"whether it still runs can only be seen on {host}. If it does not, delete {folder / LOCK}."
    return InputError(f"another run works in {folder}: {who}.", hint=hint)


def _read(path: Path) -> Holder | None:
    """Return the holder of a folder's lock, if the file names one."""
    try:
        content: dict[str, Any] = read_json(path)
        return Holder(int(content["pid"]), str(content["host"]), str(content["since"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
