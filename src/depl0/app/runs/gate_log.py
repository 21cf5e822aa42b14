"""Records of the gates of a run: their state in ``metrics.jsonl``, and open probabilities in ``gates.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from depl0.gated import GatedModel
from depl0.gates.hard_concrete import closing_log_alpha, open_probability
from depl0.search.state import settled_since
from depl0.surgery.record import record_of

SCALE = 1000
"""open probabilities are written in thousandths, which takes a tenth of the bytes and is precise enough for figures"""


def gates_line(gated: GatedModel) -> dict[str, Any]:
    """Return open probabilities by group.

    If the host was cut before, ``kept`` has the gates' channels in the dense network.
    """
    scaled = (gated.open_probability().detach() * SCALE).round().int().tolist()
    line: dict[str, Any] = {"open": {group.name: scaled[group.gates] for group in gated.plan.groups}}
    kept = _dense_channels(gated.host, {group.name: group.size for group in gated.plan.groups})
    return {**line, "kept": kept} if kept else line


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
    place = settled_since([gates for _, gates in opened], wanted)
    return float(opened[-1 if place is None else place][0])


def _dense_channels(host: nn.Module, sizes: dict[str, int]) -> dict[str, list[int]]:
    """Return the channels of the dense network that the gates of each group in a compact host belong to."""
    record = record_of(host)
    if record is None:
        return {}
    found = {name: record.positions.get((f"{name}.weight", 0)) for name in sizes}
    return {name: p.tolist() for name, p in found.items() if p is not None and len(p) == sizes[name]}


def describe_gates(gated: GatedModel, penalty_weight: float | None) -> dict[str, Any]:
    """Return the state of the gates for ``metrics.jsonl``."""
    probability = gated.open_probability().detach()
    expected, kept, dense = gated.expected.rounded(probability), gated.kept_cost(), gated.dense_cost
    is_open = gated.evaluation_gates() > 0
    return {
        "expected": {
            "macs": expected.macs,
            "params": expected.params,
            "macs_share": expected.macs / dense.macs,
            "params_share": expected.params / dense.params,
        },
        "kept": {
            "macs": kept.macs,
            "params": kept.params,
            "macs_share": kept.macs / dense.macs,
            "params_share": kept.params / dense.params,
        },
        "open_gates": {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups},
        "undecided": float(((probability > 0.1) & (probability < 0.9)).float().mean()),
        **_price(gated, penalty_weight),
    }


def _price(gated: GatedModel, penalty_weight: float | None) -> dict[str, Any]:
    """Return the quantity that closes gates: the threshold of the scores, or the weight λ of the penalty."""
    threshold = gated.threshold
    return {"lambda": penalty_weight} if threshold is None else {"threshold": float(threshold.shift)}
