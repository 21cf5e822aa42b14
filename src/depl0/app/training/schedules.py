"""Learning rates as a function of progress alone, so that a resumed run needs no scheduler state.

Every schedule gives a factor on the first learning rate from the number of epochs that have passed, fractions included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

Schedule: TypeAlias = Callable[[float], float]


def make_schedule(
    name: str, epochs: float, milestones: Sequence[int] = (), factor: float = 0.1, warmup_epochs: float = 0.0
) -> Schedule:
    """Return a schedule by name: "constant", "step", "cosine" or "one-cycle".

    >>> step = make_schedule("step", 300, milestones=(60, 120), factor=0.2)
    >>> [round(step(epoch), 3) for epoch in (0, 59.9, 60, 130)]
    [1.0, 1.0, 0.2, 0.04]
    """
    shapes: dict[str, Schedule] = {
        "constant": lambda epoch: 1.0,
        "step": lambda epoch: factor ** sum(epoch >= milestone for milestone in milestones),
        "cosine": lambda epoch: 0.5 * (1 + math.cos(math.pi * min(epoch / max(epochs, 1e-9), 1.0))),
        "one-cycle": lambda epoch: _one_cycle(min(epoch / max(epochs, 1e-9), 1.0)),
    }
    shape = shapes[name]

    def schedule(epoch: float) -> float:
        warm = min(1.0, (epoch + 1e-3) / warmup_epochs) if warmup_epochs > 0 else 1.0
        return warm * shape(epoch)

    return schedule


def _one_cycle(fraction: float, peak_at: float = 0.3, first: float = 0.04) -> float:
    """Rise from ``first`` to 1 on a cosine, then fall to nearly nothing."""
    if fraction < peak_at:
        return first + (1 - first) * 0.5 * (1 - math.cos(math.pi * fraction / peak_at))
    return 0.5 * (1 + math.cos(math.pi * (fraction - peak_at) / (1 - peak_at)))
