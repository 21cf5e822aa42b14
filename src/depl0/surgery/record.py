"""What was done to a network to make it compact: enough to do it again to a fresh copy of the dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depl0.analysis.propagate import Axis
from depl0.equivalence.certificate import Certificate
from depl0.replacements.attention import AttentionSpec
from depl0.replacements.constant import Removal, remove
from depl0.replacements.full_width import WidthSpec
from depl0.replacements.norm import NormSpec
from depl0.surgery.cut import cut_to

_ATTRIBUTE = "_depl0_compact_record"


@dataclass(frozen=True)
class CompactRecord:
    """Kept positions, relative to the dense network, and removed layers; with costs and certificate."""

    network: str
    """class name of the host"""
    dense_shapes: Mapping[str, tuple[int, ...]]
    """every parameter and buffer of the dense network"""
    positions: Mapping[Axis, Tensor]
    removals: tuple[Removal, ...]
    dense_cost: tuple[int, int]
    """parameters and MACs"""
    compact_cost: tuple[int, int]
    certificate: Certificate
    inputs: tuple[tuple[int, ...], ...] = ()
    """shapes of the example inputs; empty where they were not just tensors, or not written down"""
    probe: Any = None
    """a description of inputs on which a loaded network is verified; None where there is none"""
    norms: Mapping[str, NormSpec] = field(default_factory=dict)
    """norms over all channels, of the dense network, that count removed channels"""
    attentions: Mapping[str, AttentionSpec] = field(default_factory=dict)
    """self-attention modules of the dense network that may have lost channels"""
    full_width: Mapping[str, WidthSpec] = field(default_factory=dict)
    """modules that look at all channels at once, some of which may be gone"""


def state_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter and buffer, those that are not saved included: they are cut as well."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tuple(tensor.shape) for name, tensor in named}


def record_of(model: nn.Module) -> CompactRecord | None:
    """Return the record of a compact network, or None for any other network."""
    return model.__dict__.get(_ATTRIBUTE)


def remember(model: nn.Module, record: CompactRecord) -> None:
    """Keep a record with its compact network; deep copies carry it along."""
    model.__dict__[_ATTRIBUTE] = record


def compose(earlier: CompactRecord | None, positions: Mapping[Axis, Tensor]) -> dict[Axis, Tensor]:
    """Return kept positions relative to the dense network, if the host was itself compact already."""
    if earlier is None:
        return dict(positions)
    composed = dict(earlier.positions)
    for host_axis, keep in positions.items():
        for axis in _dense_axes(earlier, host_axis):
            composed[axis] = composed[axis][keep] if axis in composed else keep
    return composed


def _dense_axes(earlier: CompactRecord, axis: Axis) -> list[Axis]:
    """Return where an axis is in the dense network: a constant is the output of the layer and norm that it replaced."""
    for removal in earlier.removals:
        if axis[0] == f"{removal.layer}.constant":
            names = [f"{removal.layer}.{vector}" for vector in ("weight", "bias")]
            names += [f"{removal.norm}.{vector}" for vector in ("weight", "bias", "running_mean", "running_var")]
            return [(name, 0) for name in names if name in earlier.dense_shapes]
    return [axis]


def apply_record(model: nn.Module, record: CompactRecord) -> None:
    """Give a fresh dense network the shape of the compact one, in place."""
    cut_to(model, record.positions, record)
    with torch.no_grad():
        remove(model, record.removals)
