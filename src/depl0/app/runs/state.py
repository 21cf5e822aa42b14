"""What a run has found out so far: typed, part of every checkpoint, and read by whatever comes next in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from depl0.gated import FIXED, GONE, PRESENT
from depl0.search.search import Convergence


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
    split: str = "test"
    """the images that the metric is of: "validation" or "test\""""

    def to_dict(self, metric: str) -> dict[str, Any]:
        """Return what ``summary.json`` says of it."""
        return {
            f"{metric}_before": self.before,
            f"{metric}_after": self.after,
            "gates_closed": self.gates_closed,
            "statistics": self.statistics,
            "split": self.split,
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
    channels_last: bool | None = None
    """how weights lie in memory; None: not decided yet"""
    round_to: int | None = None
    """the multiple of channels, where the recipe asks the device; None: it does not, or not decided yet"""
    search: dict[str, Any] | None = None
    """what :meth:`depl0.Search.state_dict` gave"""
    frozen_gates: list[float] | None = None
    freezing: FreezingRecord | None = None
    latency: dict[str, Any] | None = None
    convergence: dict[str, Any] | None = None
    dependency: dict[str, Any] | None = None
    """how much the dependency between gates decided when they were frozen; None: they had none"""
    compactions: list[CompactionRecord] = field(default_factory=list)
    record: str | None = None
    """how the compact network was cut, as JSON, while it is fine-tuned"""
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    def to_tree(self) -> dict[str, Any]:
        """Return plain values and tensors for a checkpoint."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in dataclasses.fields(self)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> RunState:
        """Read a state back."""
        values = dict(tree)
        freezing = values.get("freezing")
        values["freezing"] = None if freezing is None else FreezingRecord(**freezing)
        values["compactions"] = [CompactionRecord(**entry) for entry in values.get("compactions", [])]
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


# -- checkpoints of 0.1.0 before states were typed -------------------------------------------------------------------


def from_history(checkpoint: dict[str, Any], steps_per_epoch: int) -> RunState:
    """Read the state of an older checkpoint, whose dict ``history`` it was; what the network lacks is added to it."""
    history: Mapping[str, Any] = checkpoint["history"]
    in_search = checkpoint["phase"] == "search"
    freezing = history.get("freezing")
    gates = history.get("gates")
    state = RunState(
        has_dense_score="dense_accuracy" in history,
        dense_score=history.get("dense_accuracy"),
        channels_last=history.get("channels_last"),
        frozen_gates=gates,
        freezing=None
        if freezing is None
        else FreezingRecord(
            freezing["accuracy_before"],
            freezing["accuracy_after"],
            freezing["gates_closed"],
            freezing["statistics"],
        ),
        latency=history.get("latency"),
        convergence=history.get("convergence"),
        compactions=[CompactionRecord(**entry) for entry in history.get("compactions", [])],
        record=history.get("record"),
        rollbacks=list(history.get("rollbacks", [])),
    )
    if in_search or gates is not None:
        state.search = _search_state(checkpoint, history, steps_per_epoch)
    sums = checkpoint["sums"]
    has_any = bool(sums[3] > 0)  # loss, task loss, correct, count
    checkpoint["sums"] = {"losses": sums[[0, 1, 3]], "measured": sums[2:].double()} if has_any else None
    model = checkpoint["model"]
    if in_search or (checkpoint["phase"] == "finetune" and state.record is None):
        model |= _gate_tensors(history, model)
    return state


def _search_state(checkpoint: Mapping[str, Any], history: Mapping[str, Any], steps: int) -> dict[str, Any]:
    convergence, stay = history.get("convergence"), history.get("stay")
    return {
        "done": int(checkpoint["epoch"]) * steps + int(checkpoint["step"]),
        "released": bool(history.get("released")),
        "frozen": "gates" in history,
        "looks_below": history.get("looks_below"),
        "stay": None if stay is None else {"open_gates": stay["open_gates"], "since": round(stay["since"] * steps)},
        "convergence": None
        if convergence is None
        else dataclasses.asdict(
            Convergence(round(convergence["epoch"] * steps), round(convergence["since_epoch"] * steps))
        ),
    }


def _gate_tensors(history: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what older gated networks did not save of themselves: gates that are fixed, and those that are gone."""
    found: dict[str, Tensor] = {}
    if "cut" in history:
        found |= {GONE: history["cut"]["gone"], PRESENT: history["cut"]["present"]}
    if "gates" in history:
        found[FIXED] = torch.tensor(history["gates"])
    return found
