"""Lock of a run folder, which the system releases when its process ends (``filelock``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from depl0.errors import InputError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder, which is created if necessary."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        hint = f"wait for it, stop it, or choose another --out. If its host is down, delete {folder / LOCK}."
        raise InputError(f"another run works in {folder}.", hint=hint) from None
    except OSError as error:
        raise InputError(
            f"the run folder {folder} cannot be written to: {error.strerror or error}.",
            hint="choose another --out, or free disk space and check the permissions of the folder.",
        ) from error
    try:
        yield
    finally:
        lock.release()
