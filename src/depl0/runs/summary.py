"""What a summary says beyond accuracy and cost, so that a report can be made from the run's folder alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from depl0.analysis.plan import Plan
from depl0.costs.count import Cost, LayerCost
from depl0.costs.memory import memory_bytes
from depl0.files import file_size
from depl0.latency import measure_latency
from depl0.surgery.record import CompactRecord

BATCH = 32
"""images of the larger of the two batches that are timed; the other is one"""


def measured(dense: nn.Module, compact: nn.Module, example: Tensor) -> dict[str, dict[str, Any]]:
    """Return latency, memory and file size of both networks, by network; ``example`` is one image."""
    networks = {"dense": dense, "compact": compact}
    batch = example.expand(BATCH, *example.shape[1:]).contiguous()
    one, many = measure_latency(networks, [example]), measure_latency(networks, [batch])
    return {
        name: {
            "latency_ms": 1000 * one[name].median,
            f"latency_ms_{BATCH}": 1000 * many[name].median,
            "memory_bytes": memory_bytes(network, [example]),
            f"memory_bytes_{BATCH}": memory_bytes(network, [batch]),
            "file_bytes": file_size(network),
        }
        for name, network in networks.items()
    }


def layer_table(plan: Plan, record: CompactRecord, dense: Cost, compact: Cost) -> list[dict[str, Any]]:
    """Return every layer in order of execution: channels, those that are left, cost, and what froze the others."""
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
                "frozen": dict(report.reasons),
                "macs": [large.macs, small.macs],
                "params": [large.params, small.params],
            }
        )
    return rows
