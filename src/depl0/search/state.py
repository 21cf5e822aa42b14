"""The state that a search keeps between steps, the events that it reports, and its convergence to a structure.

During the search, it has converged if the set of open gates has hardly changed for a while. Seen from the end of the
search, it has converged at the first moment after which hardly any gate differs from the final set
(:func:`settled_since`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depl0.search.freezing import Freezing

CHANGE = 0.01
"""Fraction of the gates that may differ from the final set while a search counts as settled, seen from its end."""


@dataclass(frozen=True)
class Convergence:
    """The search has settled on a structure."""

    step: int
    since: int
    """The step since which the open gates have stayed the same."""


@dataclass(frozen=True)
class Cut:
    """Channels were cut out of the network."""

    step: int
    macs_share: float
    """Fraction of the original MACs that remains to be trained."""
    gates_removed: int


class SearchListener:
    """Search callbacks; override as needed."""

    def converged(self, convergence: Convergence) -> None:
        """Handle convergence: the open gates have stayed the same for long enough."""

    def freezing(self) -> AbstractContextManager[object]:
        """Return a context manager around the freezing of the gates."""
        return nullcontext()

    def frozen(self, freezing: Freezing) -> None:
        """Handle the frozen gates, still inside :meth:`freezing`."""

    def cut(self, cut: Cut) -> None:
        """Handle a cut, after which the network is smaller."""


@dataclass(frozen=True)
class StablePeriod:
    """The open gates at one step, if they have hardly changed since."""

    open_gates: Tensor
    since: float
    """The step."""

    def after(self, open_gates: Tensor, step: float, change: float) -> StablePeriod:
        """Return the continued period, or a new one if more than the fraction ``change`` of the gates has changed.

        The gates are compared with the beginning of the period, so that a slow drift is not taken for convergence.

        >>> start = StablePeriod(torch.tensor([True, True, False, False]), since=2.0)
        >>> start.after(torch.tensor([True, False, False, False]), 3.0, change=0.25).since
        2.0
        >>> start.after(torch.tensor([False, False, False, False]), 3.0, change=0.25).since
        3.0
        """
        changed = float((open_gates != self.open_gates).double().mean())
        return self if changed <= change else StablePeriod(open_gates, step)

    def lasts(self, step: float, steps: float) -> bool:
        """Return True if it has lasted for this number of steps."""
        return step - self.since >= steps - 1e-9


@dataclass
class SearchState:
    """The state that a search keeps between steps."""

    done: int = 0
    """Number of steps that have begun."""
    released: bool = False
    """True if the gates can move, after the warm-up."""
    frozen: bool = False
    closed_streak: Tensor | None = None
    """Number of consecutive checks at which each gate was nearly closed."""
    stable: StablePeriod | None = None
    convergence: Convergence | None = None
    first_open: Tensor | None = None
    """Without a budget: the gates that were open when they were released."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as numbers, tensors and mappings of them."""
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("stable", "convergence"):
            state[name] = None if state[name] is None else dataclasses.asdict(state[name])
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SearchState:
        """Return a state from the result of :meth:`to_dict`."""
        stable = state["stable"]
        return cls(
            done=int(state["done"]),
            released=bool(state["released"]),
            frozen=bool(state["frozen"]),
            closed_streak=state["closed_streak"],
            stable=None if stable is None else StablePeriod(stable["open_gates"], stable["since"]),
            convergence=None if state["convergence"] is None else Convergence(**state["convergence"]),
            first_open=state["first_open"],
        )


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
