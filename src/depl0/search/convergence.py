"""Convergence of a search to a structure.

During the search, it has converged if the set of open gates has hardly changed for a while and, at the speed of the
gates in that time, would hardly change until the end. At the end of the search, it has converged since the first epoch
after which hardly any gate differs from the final set (:func:`settled_since`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHANGE = 0.01
"""Fraction of the gates that may differ from the final set while a search counts as settled, seen from its end."""


@dataclass(frozen=True)
class StablePeriod:
    """The open gates at one step, if they have hardly changed since."""

    open_gates: Tensor
    since: float
    """The step."""
    positions: Tensor | None = None
    """Position of every gate at the last speed measurement, on the scale of ``gate_positions``; None: not measured."""
    measured: float | None = None
    """The step of that measurement; None: ``since``."""

    def after(self, open_gates: Tensor, step: float, change: float, positions: Tensor | None = None) -> StablePeriod:
        """Return the continued period, or a new one if more than the fraction ``change`` of the gates has changed.

        The gates are compared with the beginning of the period, so that a slow drift is not taken for convergence.

        >>> start = StablePeriod(torch.tensor([True, True, False, False]), since=2.0)
        >>> start.after(torch.tensor([True, False, False, False]), 3.0, change=0.25).since
        2.0
        >>> start.after(torch.tensor([False, False, False, False]), 3.0, change=0.25).since
        3.0
        """
        changed = float((open_gates != self.open_gates).double().mean())
        return self if changed <= change else StablePeriod(open_gates, step, positions)

    def lasts(self, step: float, steps: float) -> bool:
        """Return True if it has lasted for this number of steps since its speed was last measured."""
        return step - self._start >= steps - 1e-9

    def continues(self, positions: Tensor, closed_below: float, step: float, last: float, change: float) -> bool:
        """Return True if, at their current speed, at most ``change`` of the gates would open or close until the end.

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
        """Return the same period, with a new speed measurement that starts here."""
        return dataclasses.replace(self, positions=positions, measured=step)

    @property
    def _start(self) -> float:
        return self.since if self.measured is None else self.measured


def gate_positions(log_alpha: Tensor, bound: float | None) -> Tensor:
    """Return log α on a scale on which gates move evenly: before the tanh for a bounded generator."""
    if bound is None:
        return log_alpha.detach().clone()  # independent gates are a view of their parameter, which still changes
    return torch.atanh((log_alpha.detach() / bound).clamp(-0.9999, 0.9999))


def can_converge(
    open_gates: Tensor,
    fraction: float,
    target_reached_at: float | None,
    first_open: Tensor | None = None,
    change: float = 0.0,
) -> bool:
    """Return True if stable gates can mean convergence at all.

    With a budget: only after the target has reached the budget. Without a budget: only after the search itself has
    closed more than the fraction ``change`` of the gates, minus those that it has opened. Gates take a while to move,
    and those that the random initialisation closed (all others are ``first_open``) do not count. A search that closes
    no gates has not converged; it has failed to prune.
    """
    if target_reached_at is not None:
        return fraction >= target_reached_at - 1e-9
    first = torch.ones_like(open_gates) if first_open is None else first_open
    return float(first.double().mean() - open_gates.double().mean()) > change


def settled_since(open_gates: Sequence[Tensor], final: Tensor, change: float = CHANGE) -> int | None:
    """Return the first index from which at most ``change`` of the gates differ from the final set; None if never.

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
