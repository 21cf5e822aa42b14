"""Progress of long calls, passed to a listener, and requests to stop them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias, final

Listener: TypeAlias = Callable[[int, int], None]
"""(finished steps, total steps)"""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(done: int, steps: int) -> None:
    """Report the number of finished steps to the listener, if there is one, and stop here if a signal requested it."""
    listener = _listener.get()
    if listener is not None:
        listener(done, steps)
    check_stop()


@contextmanager
def progress_listener(listener: Listener) -> Iterator[None]:
    """Pass progress reported within the context to a listener. Only the innermost listener receives it.

    >>> with progress_listener(lambda done, steps: print(f"{done} of {steps}")):
    ...     report_progress(1, 2)
    1 of 2
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class StopRequested(BaseException):
    """Raised to stop the work in progress. Not an ``Exception``, so that error handlers do not catch it."""


@final
@dataclass
class _Stop:
    is_requested: bool = False
    deferred: bool = False


_stop = _Stop()


@contextmanager
def stop_deferred() -> Iterator[None]:
    """Suspend :func:`check_stop` within the context. The caller checks :func:`stop_requested`, and saves first."""
    before, _stop.deferred = _stop.deferred, True
    try:
        yield
    finally:
        _stop.deferred = before


def request_stop(requested: bool = True) -> None:
    """Request this process to stop at the next :func:`check_stop`, or withdraw the request."""
    _stop.is_requested = requested


def stop_requested() -> bool:
    """Return True if a signal has requested this process to stop."""
    return _stop.is_requested


def check_stop() -> None:
    """Raise :class:`StopRequested` if a signal has requested this process to stop."""
    if _stop.is_requested and not _stop.deferred:
        raise StopRequested
