"""Records of a run: gates in ``metrics.jsonl`` and ``gates.jsonl``, networks and layers in ``summary.json``.

A report can be made from these files without other data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from depl0.analysis.plan import Plan
from depl0.costs.count import Cost, LayerCost
from depl0.gated import GatedModel
from depl0.gates.hard_concrete import closing_log_alpha, open_probability
from depl0.host.inputs import ExampleInputs
from depl0.latency import Speedup, speedup, summarise, time_networks
from depl0.surgery.files import file_size
from depl0.surgery.record import CompactRecord

CHANGE = 0.01
"""fraction of the gates that may differ from the final set while a search counts as settled"""
SCALE = 1000
"""open probabilities are written in thousandths, which takes a tenth of the bytes and is precise enough for figures"""
BATCH = 32
"""images of the larger of the two batches that are timed; the other is one"""
ROUNDS = 31
"""rounds in which both networks are timed, fewer if they take more than a second"""


# -- gates -------------------------------------------------------------------------------------------------------------


def gates_line(gated: GatedModel) -> dict[str, Any]:
    """Return open probabilities by group."""
    scaled = (gated.open_probability().detach() * SCALE).round().int().tolist()
    return {"open": {group.name: scaled[group.gates] for group in gated.plan.groups}}


def settled_epoch(lines: Sequence[Mapping[str, Any]], final: Sequence[float], rule: str) -> float | None:
    """Return the first epoch after which hardly any gate differs from the final set, from the lines of ``gates.jsonl``.

    ``final`` are the frozen gates, ``rule`` the one for evaluation gates. If freezing itself changed more than that, it
    is the last epoch; None if there are no such lines.
    """
    least = SCALE * float(open_probability(torch.tensor(closing_log_alpha(rule))))
    opened = [
        (line["epoch"], torch.tensor([value > least for values in line["open"].values() for value in values]))
        for line in lines
        if line.get("phase") == "search" and line.get("open")
    ]
    wanted = torch.tensor(final) > 0
    if not opened or any(len(gates) != len(wanted) for _, gates in opened):
        return None
    settled = opened[-1][0]
    for epoch, gates in reversed(opened):
        if float((gates != wanted).double().mean()) > CHANGE:
            break
        settled = epoch
    return float(settled)


def describe_gates(gated: GatedModel, penalty_weight: float | None) -> dict[str, Any]:
    """Return the state of the gates for ``metrics.jsonl``, with the quantity that closes them.

    This is the threshold of the scores, or the weight λ of the penalty.
    """
    probability = gated.open_probability().detach()
    costs = {"expected": gated.expected.rounded(probability), "kept": gated.kept_cost()}
    dense, is_open, threshold = gated.dense_cost, gated.evaluation_gates() > 0, gated.threshold
    return {
        **{
            name: {
                "macs": cost.macs,
                "params": cost.params,
                "macs_share": cost.macs / dense.macs,
                "params_share": cost.params / dense.params,
            }
            for name, cost in costs.items()
        },
        "open_gates": {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups},
        "undecided": float(((probability > 0.1) & (probability < 0.9)).float().mean()),
        **({"lambda": penalty_weight} if threshold is None else {"threshold": float(threshold.shift)}),
    }


# -- networks ----------------------------------------------------------------------------------------------------------


def measured(
    dense: nn.Module, compact: nn.Module, example: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, Speedup]]:
    """Return latency and file size of both networks, and the speed-up; ``example`` is one example."""
    networks = {"dense": dense, "compact": compact}
    single = ExampleInputs.of(example)
    batch = single.map_tensors(lambda tensor: tensor.expand(BATCH, *tensor.shape[1:]).contiguous())
    one, many = (time_networks(networks, inputs, ROUNDS, seconds=1.0) for inputs in (single, batch))
    figures = {
        name: {
            "latency_ms": 1000 * summarise(one[name]).median,
            f"latency_ms_{BATCH}": 1000 * summarise(many[name]).median,
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
