"""What a stranger may put into a file.

Hypothesis draws one seed for each case and the damage follows from it: thousands of cases in a few seconds.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = float(os.environ.get("DEPL0_FUZZ", "0.5"))
"""the share of the planned cases that is tried: half of them every day; ``make fuzz`` sets another"""


PLANNED: list[int] = []
"""how many cases the tests that are imported have"""


def cases(number: int, times: int = 1) -> Any:
    """Return the settings of a test with so many cases, which is run ``times`` times with other parameters."""
    PLANNED.append(number * times)
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


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


NASTY = [
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**30, -(2**70), 0.5, math.nan, math.inf, -1e308),
    *("", "0", "-1", "../../etc/passwd", "\x00", "𝕏" * 50, "x" * 10_000, "search", "none", [], {}, [[]], {"": None}),
    *([0, 0], [3, 1], [-1], [0, 1.0], [2**62], [None], list(range(100)), nested(50), {"tensor": "0"}, {"value": [1]}),
]
KEYS = ["", "0", "-1", "1", "99", " 0", "+0", "00", "conv1.weight", "bn1.bias", "sha", "𝟘", "dict", "list", "value"]


def nasty(rng: Random) -> Any:
    """Return something that should not be there."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randint(-(2**65), 2**65) >> rng.randrange(66)
    if kind == 1:
        return [rng.randint(-2, 20) for _ in range(rng.randrange(12))]
    if kind == 2:
        return "".join(chr(rng.choice([0, 10, 34, 92, 123, 955, 0x1F600, rng.randrange(32, 127)])) for _ in range(9))
    return copy.deepcopy(rng.choice(NASTY))


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


def damaged_tree(rng: Random, tree: Any) -> Any:
    """Return a tree of dicts and lists in which some entries are something else, gone, renamed, or twice there."""
    made = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 2)):
        made = _damage(rng, made)
    return made


def _damage(rng: Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        key, action = rng.choice(list(node)), rng.choice(["deeper"] * 5 + ["replace", "remove", "rename"])
        if action == "remove":
            del node[key]
        elif action == "rename":
            node[rng.choice(KEYS)] = node.pop(key)
        else:
            node[key] = _damage(rng, node[key]) if action == "deeper" else nasty(rng)
        return node
    if isinstance(node, list) and node:
        place, action = rng.randrange(len(node)), rng.choice(["deeper"] * 3 + ["replace", "remove", "double", "swap"])
        if action == "remove":
            del node[place]
        elif action == "double":
            node.insert(place, copy.deepcopy(node[place]))
        elif action == "swap":
            node[place], node[0] = node[0], node[place]
        else:
            node[place] = _damage(rng, node[place]) if action == "deeper" else nasty(rng)
        return node
    return nasty(rng)
