"""The user code that may run: the code of every run that was started here, and what ``--trust-code`` adds.

Code that a file from elsewhere names runs only if this user has trusted it. The cache folder records trusted code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from depl0._util.io import atomic_write, cache_folder
from depl0._util.user_code import importable
from depl0.errors import InputError

_remembered: set[Path] = set()  # fallback if the cache folder is not writable
_everything = False


@contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Trust all code within the context and record it, if ``everything`` is True."""
    global _everything
    before, _everything = _everything, everything
    try:
        yield
    finally:
        _everything = before


def trust_from_now_on(identity: str) -> None:
    """Record some code as trusted."""
    path = _trust_file(identity)
    _remembered.add(path)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, f"{identity}\n".encode())


def check_trusted(identity: str, message: str) -> None:
    """Raise if this user has not trusted some code."""
    path = _trust_file(identity)
    if _everything:
        trust_from_now_on(identity)
    elif path not in _remembered and not path.is_file():
        raise InputError(message, hint="read it first; --trust-code lets it run, now and later.")


def _trust_file(identity: str) -> Path:
    return cache_folder() / "trusted" / hashlib.sha256(identity.encode()).hexdigest()[:32]


def code_file(spec: str) -> str | None:
    """Return the file that :func:`~depl0._util.user_code.load_callable` would run, or None.

    A module's file is that of its top-level package.
    """
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        file = Path(where).expanduser()
        return str(file.resolve()) if file.is_file() else None
    invalidate_caches()
    with importable(os.getcwd()), suppress(ValueError):
        found = find_spec(where.partition(".")[0])
        if found is not None:  # a namespace package has only folders
            return str(Path(found.origin or next(iter(found.submodule_search_locations or [where]))).resolve())
    return None
