"""``summary.json``: the results of a finished run, from which a report can be made without other data."""

from __future__ import annotations

from typing import Any

from torch import nn

from depl0.analysis.plan import Plan
from depl0.costs.count import Cost, LayerCost
from depl0.costs.memory import memory_bytes
from depl0.host.inputs import ExampleInputs
from depl0.latency import Speedup, speedup, summarise, time_networks
from depl0.surgery.files import file_size
from depl0.surgery.record import CompactRecord

BATCH = 32
"""images of the larger of the two batches that are timed; the other is one"""
ROUNDS = 31
"""rounds in which both networks are timed, fewer if they take more than a second"""


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
