"""How many processes read images that are not in memory."""

from __future__ import annotations

import os

MOST = 8
"""more are seldom busy, and each holds the libraries that decode images in memory"""


def chosen_workers(wanted: int | None, world: int = 1) -> int:
    """Return what the settings say; where they say nothing, the cores that are left, shared by the processes of a run.

    >>> chosen_workers(3)
    3
    """
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = cores // world - 1  # one core trains
    return min(spare, MOST) if spare > 1 else 0
