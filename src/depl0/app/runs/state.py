"""Typed intermediate results of a run, which are part of every checkpoint and used by later phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from pydantic import TypeAdapter


@dataclass(frozen=True)
class FreezingRecord:
    """Effect of freezing the gates on the network."""

    before: float
    """the metric with the gates of the search"""
    after: float
    gates_closed: int
    """gates that the budget closed although the evaluation rule had them open"""
    statistics: str
    """"renewed" or "kept\""""
    split: str
    """the images used for the metric: "validation" or "test\""""
    fitted: list[dict[str, Any]] = field(default_factory=list)
    """layers that were refitted after the cut: the relative error of their outputs before and after the fit"""

    def to_dict(self, metric: str) -> dict[str, Any]:
        """Return the entry for ``summary.json``."""
        return {
            f"{metric}_before": self.before,
            f"{metric}_after": self.after,
            "gates_closed": self.gates_closed,
            "statistics": self.statistics,
            "split": self.split,
            "fitted": self.fitted,
        }


@dataclass(frozen=True)
class CompactionRecord:
    """The network became smaller during the search, or when its gates were frozen."""

    epoch: float
    step: int
    macs_share: float


@final
@dataclass
class RunState:
    """Results of finished phases."""

    has_dense_score: bool = False
    dense_score: float | None = None
    dense_validation: float | None = None
    """the same on the held-out images, if any"""
    dense_right: list[int] | None = None
    """correct predictions of the dense network in each class, if it was trained beside the search"""
    channels_last: bool | None = None
    """memory layout of the weights; None: not decided yet"""
    search: dict[str, Any] | None = None
    """result of :meth:`depl0.Search.state_dict`"""
    frozen_gates: list[float] | None = None
    freezing: FreezingRecord | None = None
    latency: dict[str, Any] | None = None
    convergence: dict[str, Any] | None = None
    compactions: list[CompactionRecord] = field(default_factory=list)
    record: str | None = None
    """how the compact network was cut, as JSON, while it is fine-tuned"""

    def to_tree(self) -> dict[str, Any]:
        """Return plain values and tensors for a checkpoint."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in dataclasses.fields(self)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunState:
        """Read a state back."""
        return TypeAdapter(cls).validate_python(dict(tree))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
