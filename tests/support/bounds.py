"""Limits of time and memory for one case: a broken file must neither hang a program nor fill its memory."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 5.0
MEMORY = 1_000_000_000


class TooSlow(BaseException):
    """A case took longer than it may; nobody may take it for an error of a file."""


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Let a case take so many seconds, and so many bytes more than there were before; else it fails.

    Seconds are those of the processor, so that a busy machine fails nobody; what waits for ever is ended after twenty
    times as long. More memory is refused by the system, which is a MemoryError here. Where a library hangs outside of
    Python, the alarm is noticed when it returns.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + memory, before[1]))
    handler = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
    start = time.process_time()
    try:
        yield
        if time.process_time() - start > seconds:
            raise TooSlow
    except MemoryError as error:
        raise AssertionError(f"more than {memory:,} bytes were asked for") from error
    except TooSlow as error:
        raise AssertionError(f"it took more than {seconds:g} s") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
