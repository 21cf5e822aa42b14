"""Has the search settled on a structure? It has when the set of open gates has stayed nearly the same for a while."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stay:
    """The open gates as they were at one time, and have been since but for a small change."""

    open_gates: Tensor
    since: float
    """in epochs"""

    def after(self, open_gates: Tensor, epoch: float, change: float) -> Stay:
        """Return the stay that goes on, or a new one where more than the share ``change`` of the gates has changed.

        Compared with the beginning of the stay, so that a slow drift does not pass for rest.

        >>> start = Stay(torch.tensor([True, True, False, False]), since=2.0)
        >>> start.after(torch.tensor([True, False, False, False]), 3.0, change=0.25).since
        2.0
        >>> start.after(torch.tensor([False, False, False, False]), 3.0, change=0.25).since
        3.0
        """
        changed = float((open_gates != self.open_gates).double().mean())
        return self if changed <= change else Stay(open_gates, epoch)

    def lasts(self, epoch: float, epochs: float) -> bool:
        """Tell whether it has gone on for so many epochs."""
        return epoch - self.since >= epochs - 1e-9


def may_begin(open_gates: Tensor, fraction: float, target_reached_at: float | None) -> bool:
    """Tell whether rest can mean convergence at all.

    With a budget: not before the target has come down to it. Without one: not while every gate is open, because gates
    start open and take a while to move; a search that closes nothing has not converged, it has failed to prune.
    """
    if target_reached_at is not None:
        return fraction >= target_reached_at - 1e-9
    return not bool(torch.all(open_gates))
