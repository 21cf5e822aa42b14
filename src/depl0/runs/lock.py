"""One run folder, one run: a lock that says who works there, and that no dead process can hold.

The file ``lock`` names process, host and the time the process began. It is no lock any more when that process is gone
from this host, or when its number belongs to a younger process.
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
from uuid import uuid4

from depl0.errors import InputError

LOCK = "lock"
_TRIES = 20


@dataclass(frozen=True)
class Holder:
    """The process that works in a run folder."""

    pid: int
    host: str
    began: str
    """when the process began, as this host counts; empty where the system does not tell"""
    since: str
    """for people"""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep everybody else out of a run folder, which is made if need be."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mine = _take(path)
    except OSError as error:
        raise InputError(
            f"the run folder {folder} cannot be written to: {error.strerror or error}.",
            hint="choose another --out, or make room and give yourself the right to write there.",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if _read(path) == mine:
                path.unlink()


def _take(path: Path) -> Holder:
    mine = Holder(os.getpid(), socket.gethostname(), _began(os.getpid()) or "", time.strftime("%Y-%m-%d %H:%M:%S %z"))
    part = path.with_name(f"{LOCK}-{uuid4().hex}.part")
    part.write_text(json.dumps(asdict(mine)) + "\n")
    try:
        for _ in range(_TRIES):
            try:
                _create(path, part)
                return mine
            except FileExistsError:
                _remove_stale(path)
        raise InputError(f"the lock {path} changes all the time.", hint="is another run being started there?")
    finally:
        part.unlink(missing_ok=True)


def _create(path: Path, part: Path) -> None:
    """Make the lock, with its content from the first moment on where the file system has hard links."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        with path.open("x") as file:
            file.write(part.read_text())


def _remove_stale(path: Path) -> None:
    """Remove the lock of a process that is gone, or refuse."""
    with _alone(path.parent):
        try:
            holder = _read(path)
        except FileNotFoundError:
            return
        if holder is not None and _may_live(holder):
            raise _refusal(path, holder)
        path.unlink(missing_ok=True)


def _refusal(path: Path, holder: Holder) -> InputError:
    who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    if holder.host == socket.gethostname():
        hint = "wait for it, stop it, or choose another --out."
    else:
        hint = f"whether it still runs can only be seen on {holder.host}. If it does not, delete {path}."
    return InputError(f"another run works in {path.parent}: {who}.", hint=hint)


def _read(path: Path) -> Holder | None:
    """Return who holds a lock; None if the file does not say, being cut short by a loss of power."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        return Holder(int(content["pid"]), str(content["host"]), str(content["began"]), str(content["since"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _may_live(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return True
    if not _exists(holder.pid):
        return False
    began = _began(holder.pid)
    return not began or not holder.began or began == holder.began


def _exists(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return _stat(pid)[:1] != ["Z"]  # dead, and not yet taken note of by its parent


def _began(pid: int) -> str | None:
    """Return a mark of the time at which a process began: the machine's start, and clock ticks since then."""
    fields = _stat(pid)
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    except (OSError, IndexError):
        return None


def _stat(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on; nothing on other systems."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time decide about a stale lock, where the system can do that."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
