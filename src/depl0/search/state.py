"""What a search remembers from step to step, and what it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depl0.search.convergence import StablePeriod
from depl0.search.freezing import Freezing
from depl0.surgery.shrink import Shrunk


@dataclass(frozen=True)
class Convergence:
    """The search has settled on a structure."""

    step: int
    since: int
    """the step since which the open gates have stayed the same"""


@dataclass(frozen=True)
class Cut:
    """Channels were cut out of the network."""

    step: int
    macs_share: float
    """of the dense MACs, that are left to train"""
    gates_removed: int


class SearchListener:
    """Search callbacks; override as needed."""

    def converged(self, convergence: Convergence) -> None:
        """The open gates have stayed the same for long enough."""

    def freezing(self) -> AbstractContextManager[object]:
        """Surround the freezing of the gates."""
        return nullcontext()

    def frozen(self, freezing: Freezing) -> None:
        """The gates are frozen; still inside :meth:`freezing`."""

    def shrunk(self, shrunk: Shrunk) -> None:
        """The host was replaced by a smaller one; the search's optimizers and averages have been carried over."""

    def cut(self, cut: Cut) -> None:
        """The network has become smaller."""


@dataclass
class SearchState:
    """What a search remembers from step to step."""

    done: int = 0
    """steps that have begun"""
    released: bool = False
    """whether the gates move: the warm-up is over"""
    frozen: bool = False
    closed_streak: Tensor | None = None
    """for how many checks in a row each gate has been nearly closed"""
    stable: StablePeriod | None = None
    convergence: Convergence | None = None
    first_open: Tensor | None = None
    """without a budget: the gates that were open when they were released"""

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, tensors and mappings of them."""
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("stable", "convergence"):
            state[name] = None if state[name] is None else dataclasses.asdict(state[name])
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SearchState:
        """Return what :meth:`to_dict` described."""
        return cls(
            done=int(state["done"]),
            released=bool(state["released"]),
            frozen=bool(state["frozen"]),
            closed_streak=state["closed_streak"],
            stable=None if state["stable"] is None else StablePeriod(**state["stable"]),
            convergence=None if state["convergence"] is None else Convergence(**state["convergence"]),
            first_open=state["first_open"],
        )
