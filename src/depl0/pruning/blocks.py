"""Which groups may stay closed as a whole, so that the layers around them can be taken out."""

from __future__ import annotations

import torch
from torch import Tensor

from depl0.gated import GatedModel


def whole_blocks(gated: GatedModel, is_open: Tensor) -> Tensor:
    """Return which gates belong to closed groups that the network can do without.

    A group whose gates are all closed usually gets one of them back, because one channel stays anyway. Here those are
    found that need none: with all of them closed together, the outputs still depend on the inputs.
    """
    without = torch.zeros_like(is_open)
    for group in gated.plan.groups:
        if bool(is_open[group.gates].any()):
            continue
        without[group.gates] = True
        if not gated.reacts((~without).float()):
            without[group.gates] = False
    return without
