"""Has the search settled on a structure?

While it goes on: it has when the set of open gates has stayed nearly the same for a while, and at the speed at which
gates moved in that time it would stay so until the end. Seen from its end: since the first epoch after which hardly any
gate differs from the final set (:func:`settled_since`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHANGE = 0.01
"""the share of the gates that may differ from the final set while a search counts as settled, seen from its end"""


@dataclass(frozen=True)
class StablePeriod:
    """The open gates as they were at one time, and have been since but for a small change."""

    open_gates: Tensor
    since: float
    """the step"""
    positions: Tensor | None = None
    """where every gate was when its speed was last measured, on the scale of ``gate_positions``; None: not measured"""
    measured: float | None = None
    """the step of that; None: ``since``"""

    def after(self, open_gates: Tensor, step: float, change: float, positions: Tensor | None = None) -> StablePeriod:
        """Return the period that goes on, or a new one where more than the share ``change`` of the gates has changed.

        Compared with the beginning of the period, so that a slow drift does not pass for rest.

        >>> start = StablePeriod(torch.tensor([True, True, False, False]), since=2.0)
        >>> start.after(torch.tensor([True, False, False, False]), 3.0, change=0.25).since
        2.0
        >>> start.after(torch.tensor([False, False, False, False]), 3.0, change=0.25).since
        3.0
        """
        changed = float((open_gates != self.open_gates).double().mean())
        return self if changed <= change else StablePeriod(open_gates, step, positions)

    def lasts(self, step: float, steps: float) -> bool:
        """Tell whether it has gone on for so many steps, and its speed was not measured since."""
        return step - self._start >= steps - 1e-9

    def continues(self, positions: Tensor, closed_below: float, step: float, last: float, change: float) -> bool:
        """Tell whether, at their present speed, at most ``change`` of the gates would open or close until the end.

        >>> start = StablePeriod(torch.tensor([True, True]), since=0.0, positions=torch.tensor([3.0, 3.0]))
        >>> start.continues(torch.tensor([3.0, 2.0]), 0.0, step=10, last=20, change=0.01)
        True
        >>> start.continues(torch.tensor([3.0, 2.0]), 0.0, step=10, last=50, change=0.01)
        False
        """
        if self.positions is None:
            return True
        speed = (positions - self.positions) / max(step - self._start, 1e-9)
        end = positions + speed * max(last - step, 0.0)
        return float(((end > closed_below) != (positions > closed_below)).double().mean()) <= change

    def measured_at(self, positions: Tensor, step: float) -> StablePeriod:
        """Return the same period, with speed measured from here on."""
        return dataclasses.replace(self, positions=positions, measured=step)

    @property
    def _start(self) -> float:
        return self.since if self.measured is None else self.measured


def gate_positions(log_alpha: Tensor, bound: float | None) -> Tensor:
    """Return log α on a scale on which gates move evenly: a bounded generator's before its tanh."""
    if bound is None:
        return log_alpha.detach().clone()  # free gates are a view of their parameter, which goes on moving
    return torch.atanh((log_alpha.detach() / bound).clamp(-0.9999, 0.9999))


def can_converge(
    open_gates: Tensor,
    fraction: float,
    target_reached_at: float | None,
    first_open: Tensor | None = None,
    change: float = 0.0,
) -> bool:
    """Tell whether rest can mean convergence at all.

    With a budget: not before the target has come down to it. Without one: not before the search itself has closed more
    than the share ``change`` of the gates, less those that it has opened. Gates take a while to move, and those that
    the random initialisation closed (all others are ``first_open``) do not count. A search that closes nothing has not
    converged, it has failed to prune.
    """
    if target_reached_at is not None:
        return fraction >= target_reached_at - 1e-9
    first = torch.ones_like(open_gates) if first_open is None else first_open
    return float(first.double().mean() - open_gates.double().mean()) > change


def settled_since(open_gates: Sequence[Tensor], final: Tensor, change: float = CHANGE) -> int | None:
    """Return the first moment from which on at most ``change`` of the gates differ from the final set; None: never.

    >>> final = torch.tensor([True, False])
    >>> settled_since([~final, final, ~final, final, final], final), settled_since([~final], final)
    (3, None)
    """
    settled = None
    for moment in reversed(range(len(open_gates))):
        if float((open_gates[moment] != final).double().mean()) > change:
            break
        settled = moment
    return settled
