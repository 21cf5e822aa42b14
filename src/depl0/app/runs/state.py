"""What a run has found out so far: typed, part of every checkpoint, and read by whatever comes next in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from pydantic import TypeAdapter


@dataclass(frozen=True)
class FreezingRecord:
    """What freezing the gates did to the network."""

    before: float
    """the metric with the gates that the search had"""
    after: float
    gates_closed: int
    """gates that the budget closed although the evaluation rule had them open"""
    statistics: str
    """"renewed" or "kept\""""
    split: str
    """the images that the metric is of: "validation" or "test\""""
    fitted: list[dict[str, Any]] = field(default_factory=list)
    """layers that were fitted to the cut: the relative error of their outputs before the fit, and after it"""

    def to_dict(self, metric: str) -> dict[str, Any]:
        """Return what ``summary.json`` says of it."""
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
    """Results of what is done already."""

    has_dense_score: bool = False
    dense_score: float | None = None
    dense_validation: float | None = None
    """the same on the images that are held out, if any"""
    dense_right: list[int] | None = None
    """correct predictions of the dense network in each class, where it was trained beside the search"""
    channels_last: bool | None = None
    """how weights lie in memory; None: not decided yet"""
    search: dict[str, Any] | None = None
    """what :meth:`depl0.Search.state_dict` gave"""
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
