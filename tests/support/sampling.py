"""A few of many combinations: every value of every parameter, and everything where DEPL0_ALL is set."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

ALL = bool(os.environ.get("DEPL0_ALL"))
"""whether tests go through whole products; ``make zoo`` sets it"""


def covering(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows for ``parametrize``: as many as the longest parameter has values, the others repeated in turn."""
    if ALL:
        return list(itertools.product(*values))
    return [tuple(each[row % len(each)] for each in values) for row in range(max(map(len, values)))]
