"""What a stranger may put into a file.

Hypothesis draws one seed for each case and the damage follows from it: thousands of cases in a few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = float(os.environ.get("DEPL0_FUZZ", "0.5"))
"""the share of the planned cases that is tried: half of them every day; ``make fuzz`` sets another"""


def cases(number: int) -> Any:
    """Return the settings of a test with so many cases."""
    return settings(
        max_examples=int(number * CASES),
        deadline=None,
        database=None,
        derandomize=CASES < 1,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


seeds = st.integers(0, 2**64).map(Random)
"""random numbers of its own for each case"""


@contextmanager
def only(kind: type[Exception]) -> Iterator[None]:
    """Allow one kind of error, which says something."""
    try:
        yield
    except kind as error:
        assert str(error)


def damaged_bytes(rng: Random, content: bytes) -> bytes:
    """Return bytes with a few things done to them."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place, length = rng.randrange(max(len(data), 1)), rng.randint(1, 30)
        kind = rng.choice(["flip", "flip", "set", "cut", "insert", "remove", "repeat"])
        if kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = rng.randbytes(length)
        elif kind == "remove":
            del data[place : place + length]
        elif kind == "repeat":
            data[place:place] = data[place : place + length]
        elif data:
            data[place] = data[place] ^ (1 << rng.randrange(8)) if kind == "flip" else rng.randrange(256)
    return bytes(data)
