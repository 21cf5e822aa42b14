"""Temporary changes to process-wide state, under one lock: warnings, logs, and torch's defaults.

The default type and device of new tensors, and autocast, belong to the user. depl0's own tensors must not depend on
them: counts and gates are in float32, and most of them are on the CPU. Public functions therefore run under
:func:`library_defaults`, and user code that they call runs under :func:`user_defaults`.

Autocast caches a cast of every weight until its context ends. Functions that fit or train weights within it would
continue with the outdated casts, so :func:`library_defaults` disables this cache.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import torch

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)  # another thread may have held the lock


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock that protects random generators, default types, backends, warning filters and hooks."""
    with _lock:
        yield


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore the warnings of the calling thread. Warnings of other threads are still shown.

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


_OWN_FILES = (str(Path(__file__).parents[1]), contextlib.__file__)


def warn_caller(message: str) -> None:
    """Warn at the line of the user's code that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


@contextmanager
def ignored_logs(package: str) -> Iterator[None]:
    """Drop the log records that the calling thread emits through the loggers of a package."""
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
_DEVICES = ("cpu", "cuda", "xpu", "mps")
_given: ContextVar[tuple[torch.dtype, torch.device] | None] = ContextVar("given", default=None)
"""the user's defaults, while the library's are active"""


@contextmanager
def library_defaults() -> Iterator[None]:
    """Create new tensors in float32 on the CPU regardless of the user's defaults, and disable the cache of casts."""
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
    """Restore the user's defaults within the context, to run user code."""
    given = _given.get()
    if given is None:
        yield
    else:
        with _set(*given, None):
            yield


def with_user_defaults(function: Callable[..., T], *args: Any) -> T:
    """Call a user function under the user's defaults."""
    with user_defaults():
        return function(*args)


def read_as_user(batches: Iterable[T]) -> Iterator[T]:
    """Iterate over a user's iterable under the user's defaults."""
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


@contextmanager
def without_autocast() -> Iterator[None]:
    """Disable autocast for the calling thread: sums of products are inverted, so they need all digits of float32.

    >>> rows = torch.ones(1, 1) / 3
    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
    ...     (rows @ rows).dtype
    torch.float32
    """
    with ExitStack() as stack:
        for kind in _DEVICES:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def thread_context() -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that applies this thread's autocast and device settings to user code in another thread.

    Casts are not cached there either.
    """
    device = (_given.get() or (None, torch.get_default_device()))[1]
    kinds = [kind for kind in _DEVICES if torch.is_autocast_enabled(kind)]
    casts = {kind: torch.get_autocast_dtype(kind) for kind in kinds}

    def entered() -> AbstractContextManager[Any]:
        stack = ExitStack()
        if device != torch.get_default_device():
            stack.enter_context(device)
        for kind, dtype in casts.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        return stack

    return entered
