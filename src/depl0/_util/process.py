"""What depl0 changes for the whole process for a while, under one lock: warnings, logs, and torch's defaults.

The default type and device of new tensors, and autocast, are the user's, and depl0's own tensors must not depend on
them: counts and gates are in float32, and most of them on the CPU. So what users call is under
:func:`library_defaults`, and their code that is called from there under :func:`user_defaults`.

Autocast keeps a cast of every weight until its context ends. What users call may fit and train weights within it, and
would go on with the old ones; so under :func:`library_defaults` no casts are kept.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch


class _Lock:
    """A re-entrant lock; a process that was forked while another thread held it starts with a new one."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.current = threading.RLock()


_lock = _Lock()
os.register_at_fork(after_in_child=_lock.renew)


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock under which random generators, default types, backends, warning filters and hooks are changed."""
    with _lock.current:
        yield


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore the warnings of the calling thread; those of other threads are shown as always.

    >>> with ignored_warnings():
    ...     warnings.warn("not shown")
    """
    thread = threading.get_ident()

    class OfThisThread(type):
        def __subclasscheck__(cls, category: type) -> bool:
            return threading.get_ident() == thread

    matches: Any = OfThisThread("ThreadWarning", (Warning,), {})
    with exclusive(), warnings.catch_warnings():
        warnings.simplefilter("ignore", matches)
        yield


@contextmanager
def ignored_logs(package: str) -> Iterator[None]:
    """Drop what the calling thread logs through the loggers of a package."""
    thread = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    with exclusive():
        names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == package]
        loggers = [logging.getLogger(name) for name in names]
        for logger in loggers:
            logger.addFilter(of_others)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(of_others)


T = TypeVar("T")
_given: ContextVar[tuple[torch.dtype, torch.device] | None] = ContextVar("given", default=None)
"""the user's defaults, while others are set"""


@contextmanager
def library_defaults() -> Iterator[None]:
    """Make new tensors in float32 on the CPU, whatever the user's defaults are, and keep no casts of weights.

    >>> torch.set_default_dtype(torch.float64)
    >>> with library_defaults():
    ...     own = torch.zeros(1).dtype
    ...     with user_defaults():
    ...         users = torch.zeros(1).dtype
    >>> torch.set_default_dtype(torch.float32)
    >>> own, users
    (torch.float32, torch.float64)
    """
    given = torch.get_default_dtype(), torch.get_default_device()
    with _no_kept_casts():
        if _given.get() is not None or given == (torch.float32, torch.device("cpu")):
            yield
        else:
            with _set(torch.float32, torch.device("cpu"), given):
                yield


@contextmanager
def _no_kept_casts() -> Iterator[None]:
    keeps = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(keeps)


@contextmanager
def user_defaults() -> Iterator[None]:
    """Give the user's code its own defaults back while it runs."""
    given = _given.get()
    if given is None:
        yield
    else:
        with _set(*given, None):
            yield


def with_user_defaults(function: Callable[..., T], *args: Any) -> T:
    """Call a function of the user's."""
    with user_defaults():
        return function(*args)


def read_as_user(batches: Iterable[T]) -> Iterator[T]:
    """Give what an iterable of the user's gives."""
    iterator, end = with_user_defaults(iter, batches), object()
    while (batch := with_user_defaults(next, iterator, end)) is not end:
        yield batch


@contextmanager
def _set(dtype: torch.dtype, device: torch.device, given: tuple[torch.dtype, torch.device] | None) -> Iterator[None]:
    with exclusive():
        before, token = torch.get_default_dtype(), _given.set(given)
        torch.set_default_dtype(dtype)
        try:
            with device:
                yield
        finally:
            torch.set_default_dtype(before)
            _given.reset(token)


def thread_context() -> Callable[[], AbstractContextManager[Any]]:
    """Return a context in which another thread runs the user's code as it would run here: autocast, and the device."""
    device = (_given.get() or (None, torch.get_default_device()))[1]
    kinds = [kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(kind)]
    casts = {kind: torch.get_autocast_dtype(kind) for kind in kinds}

    def entered() -> AbstractContextManager[Any]:
        stack = ExitStack()
        if device != torch.get_default_device():
            stack.enter_context(device)
        for kind, dtype in casts.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        return stack

    return entered
