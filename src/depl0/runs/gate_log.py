"""What a run writes down of its gates: their state in ``metrics.jsonl``, how likely each is open in ``gates.jsonl``."""

from __future__ import annotations

from typing import Any

from torch import nn

from depl0.gated import GatedModel
from depl0.pruning.latency_budget import latency_share
from depl0.surgery.record import record_of

SCALE = 1000
"""open probabilities are written as whole thousandths: a tenth of the bytes, and more than an eye can tell"""


def gates_line(gated: GatedModel) -> dict[str, Any]:
    """Return open probabilities by group; with ``kept``, where the host was cut before, the gates' dense channels."""
    scaled = (gated.open_probability().detach() * SCALE).round().int().tolist()
    line: dict[str, Any] = {"open": {group.name: scaled[group.gates] for group in gated.plan.groups}}
    kept = _dense_channels(gated.host, {group.name: group.size for group in gated.plan.groups})
    return {**line, "kept": kept} if kept else line


def _dense_channels(host: nn.Module, sizes: dict[str, int]) -> dict[str, list[int]]:
    """Return, for groups of a host that is itself compact, which channels of the dense network their gates are."""
    record = record_of(host)
    if record is None:
        return {}
    found = {name: record.positions.get((f"{name}.weight", 0)) for name in sizes}
    return {name: p.tolist() for name, p in found.items() if p is not None and len(p) == sizes[name]}


def describe_gates(gated: GatedModel, penalty_weight: float | None) -> dict[str, Any]:
    """Return the state of the gates for ``metrics.jsonl``."""
    probability = gated.open_probability().detach()
    expected, kept, dense = gated.expected_cost(), gated.kept_cost(), gated.dense_cost
    is_open = gated.evaluation_gates() > 0
    multiplier = penalty_weight
    if gated.budget is not None:
        multiplier = float(gated.budget.shift.exp())
    return {
        "expected": {
            "macs": expected.macs,
            "params": expected.params,
            "macs_share": expected.macs / dense.macs,
            "params_share": expected.params / dense.params,
            **latency_share(gated, probability),
        },
        "kept": {
            "macs": kept.macs,
            "params": kept.params,
            "macs_share": kept.macs / dense.macs,
            "params_share": kept.params / dense.params,
        },
        "open_gates": {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups},
        "undecided": float(((probability > 0.1) & (probability < 0.9)).float().mean()),
        "lambda": multiplier,
    }
