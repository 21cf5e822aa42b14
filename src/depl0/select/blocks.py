"""Which groups may stay closed as a whole, so that the layers around them can be taken out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from depl0.analysis.plan import Plan


def whole_blocks(plan: Plan, is_open: Tensor, reacts: Callable[[Tensor], bool]) -> Tensor:
    """Return which gates belong to closed groups that the network can do without.

    A group whose gates are all closed usually gets one of them back, because one channel stays anyway. Here those are
    found that need none: with all of them closed together, the outputs still depend on the inputs, which is what
    ``reacts`` tells for given gates.
    """
    without = torch.zeros_like(is_open)
    for group in plan.groups:
        if bool(is_open[group.gates].any()):
            continue
        without[group.gates] = True
        if not reacts((~without).float()):
            without[group.gates] = False
    return without
