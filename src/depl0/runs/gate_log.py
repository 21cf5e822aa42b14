"""What ``gates.jsonl`` holds: how likely every gate is open, at the start of the search and after every epoch."""

from __future__ import annotations

from typing import Any

from torch import nn

from depl0.gated import GatedModel
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
