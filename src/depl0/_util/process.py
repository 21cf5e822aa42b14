"""What depl0 changes for the whole process, for a while and under one lock, and how little other threads see of it."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
