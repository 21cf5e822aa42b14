"""The state that a search keeps between steps, and the events that it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depl0.search.convergence import StablePeriod
from depl0.search.freezing import Freezing


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
        return cls(
            done=int(state["done"]),
            released=bool(state["released"]),
            frozen=bool(state["frozen"]),
            closed_streak=state["closed_streak"],
            stable=None if state["stable"] is None else StablePeriod(**state["stable"]),
            convergence=None if state["convergence"] is None else Convergence(**state["convergence"]),
            first_open=state["first_open"],
        )
