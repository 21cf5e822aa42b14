"""``summary.json``: the typed results of a finished run, from which a report can be made without other data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from depl0.analysis.plan import Plan
from depl0.app.runs.state import CompactionRecord, FreezingRecord
from depl0.app.tasks import Metric
from depl0.costs.count import Cost, LayerCost
from depl0.costs.memory import memory_bytes
from depl0.equivalence.certificate import Certificate
from depl0.host.inputs import ExampleInputs
from depl0.latency.measure import Speedup, speedup, summarise, time_networks
from depl0.surgery.files import file_size
from depl0.surgery.record import Agreement, CompactRecord

BATCH = 32
"""images of the larger of the two batches that are timed; the other is one"""
ROUNDS = 31
"""rounds in which both networks are timed, fewer if they take more than a second"""


@dataclass(frozen=True)
class Figures:
    """Figures of one network."""

    score: float | None
    """the task's metric on the test images; None: the network was never trained"""
    cost: Cost
    measured: dict[str, Any]
    """latency, memory and file size"""
    validation: float | None = None
    """the task's metric on the images held out for choices, if any"""

    def to_dict(self, metric: Metric) -> dict[str, Any]:
        """Return the figures with the score under the metric's name."""
        return {metric.name: self.score, "macs": self.cost.macs, "params": self.cost.params, **self.measured}


@dataclass(frozen=True)
class BudgetFigures:
    """The requested budget and the achieved cost."""

    asked: float | None
    of: str
    reached: float
    round_to: int
    penalty_weight: float | None
    latency: dict[str, Any] | None
    """for a budget of latency: the predicted and the measured values"""


@final
@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    name: str
    model: str
    data: str
    method: str
    metric: Metric
    validation_images: int | None
    """training images that were held out for choices; None: none"""
    search_epochs: int
    finetune_epochs: int
    dense: Figures
    compact: Figures
    speedup: dict[str, Speedup]
    """by batch size"""
    budget: BudgetFigures
    freezing: FreezingRecord
    convergence: dict[str, Any] | None
    """when the search detected that its open gates had settled"""
    settled_epoch: float | None
    """the first epoch after which hardly any gate differs from the final set, computed at the end"""
    compactions: list[CompactionRecord]
    certificate: Certificate
    agreement: Agreement | None
    """agreement with the dense network on images that were not used in training; None: not measured"""
    removed: list[str]
    input: dict[str, Any]
    groups: dict[str, dict[str, int]]
    layers: list[dict[str, Any]]
    channels_last: bool
    steps: int
    seconds: float
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        dense, compact, budget = self.dense.cost, self.compact.cost, self.budget
        return {
            "name": self.name,
            "model": self.model,
            "data": self.data,
            "method": self.method,
            "metric": self.metric.to_dict(),
            "epochs": {"search": self.search_epochs, "finetune": self.finetune_epochs},
            "dense": self.dense.to_dict(self.metric),
            "compact": self.compact.to_dict(self.metric),
            "validation": self._validation(),
            "speedup": {batch: dataclasses.asdict(found) for batch, found in self.speedup.items()},
            "budget": budget.asked,
            "budget_of": budget.of if budget.asked is not None else None,
            "budget_asked": budget.asked,
            "budget_reached": budget.reached,
            "round_to": budget.round_to,
            "penalty_weight": budget.penalty_weight,
            "macs_left": compact.macs / dense.macs,
            "params_left": compact.params / dense.params,
            "latency_budget": budget.latency,
            "freezing": self.freezing.to_dict(self.metric.name),
            "convergence": self.convergence,
            "settled_epoch": self.settled_epoch,
            "compactions": [dataclasses.asdict(entry) for entry in self.compactions],
            "certificate": dataclasses.asdict(self.certificate),
            "agreement": None if self.agreement is None else dataclasses.asdict(self.agreement),
            "removed": self.removed,
            "input": self.input,
            "groups": self.groups,
            "layers": self.layers,
            "channels_last": self.channels_last,
            "steps": self.steps,
            "seconds": self.seconds,
            "seed": self.seed,
        }

    def _validation(self) -> dict[str, Any] | None:
        """Return the metric of both networks on the held-out images, and the number of these."""
        if self.validation_images is None:
            return None
        networks = {"dense": self.dense, "compact": self.compact}
        return {
            "images": self.validation_images,
            **{name: {self.metric.name: figures.validation} for name, figures in networks.items()},
        }


def measured(
    dense: nn.Module, compact: nn.Module, example: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, Speedup]]:
    """Return latency, memory and file size of both networks, and the speed-up; ``example`` is one example."""
    networks = {"dense": dense, "compact": compact}
    single = ExampleInputs.of(example)
    batch = single.map_tensors(lambda tensor: tensor.expand(BATCH, *tensor.shape[1:]).contiguous())
    one, many = (time_networks(networks, inputs, ROUNDS, seconds=1.0) for inputs in (single, batch))
    figures = {
        name: {
            "latency_ms": 1000 * summarise(one[name]).median,
            f"latency_ms_{BATCH}": 1000 * summarise(many[name]).median,
            "memory_bytes": memory_bytes(network, single),
            f"memory_bytes_{BATCH}": memory_bytes(network, batch),
            "file_bytes": file_size(network),
        }
        for name, network in networks.items()
    }
    faster = {"1": speedup(one["dense"], one["compact"]), str(BATCH): speedup(many["dense"], many["compact"])}
    return figures, faster


def layer_table(plan: Plan, record: CompactRecord, dense: Cost, compact: Cost) -> list[dict[str, Any]]:
    """Return every layer in order of execution: channels, kept channels, cost, and why others are unprunable."""
    output = {use.layer: use.out_axis for use in plan.uses}
    group_of = {layer: group.name for group in plan.groups for layer in group.layers}
    nothing = LayerCost(0, 0)
    rows = []
    for report in plan.layers:
        left = record.positions.get(output[report.layer]) if report.layer in output else None
        large, small = dense.layers.get(report.layer, nothing), compact.layers.get(report.layer, nothing)
        rows.append(
            {
                "layer": report.layer,
                "group": group_of.get(report.layer),
                "channels": report.channels,
                "kept": report.channels if left is None else len(left),
                "prunable": report.prunable,
                "unprunable": dict(report.reasons),
                "macs": [large.macs, small.macs],
                "params": [large.params, small.params],
            }
        )
    return rows
