"""Code that a file from elsewhere names or holds: it runs only if this user has let it.

What may run is remembered in the cache folder: the code of every run that was started here. ``--trust-code`` adds what
a command meets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from depl0._util.io import atomic_write, cache_folder
from depl0.errors import InputError

_remembered: set[Path] = set()  # for where the cache folder cannot be written
_everything = False


@contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Let all code run meanwhile, and remember it; or as always."""
    global _everything
    before, _everything = _everything, everything
    try:
        yield
    finally:
        _everything = before


def remember(identity: str) -> None:
    """Let some code run from now on."""
    path = _path(identity)
    _remembered.add(path)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, f"{identity}\n".encode())


def check(identity: str, message: str) -> None:
    """Refuse code that nobody has let run."""
    path = _path(identity)
    if _everything:
        remember(identity)
    elif path not in _remembered and not path.is_file():
        raise InputError(message, hint="read it first; --trust-code lets it run, now and later.")


def _path(identity: str) -> Path:
    return cache_folder() / "trusted" / hashlib.sha256(identity.encode()).hexdigest()[:32]
