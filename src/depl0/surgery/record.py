"""What was done to a network to make it compact: enough to do it again to a fresh copy of the dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depl0.analysis.propagate import Axis
from depl0.surgery.certificate import Certificate
from depl0.surgery.constant import Removal, remove
from depl0.surgery.slicing import slice_module

_ATTRIBUTE = "_depl0_compact_record"


@dataclass(frozen=True)
class CompactRecord:
    """Kept positions, relative to the dense network, and removed layers; with costs and certificate."""

    network: str
    """class name of the host"""
    dense_shapes: Mapping[str, tuple[int, ...]]
    """every tensor of the dense network's state dict"""
    positions: Mapping[Axis, Tensor]
    removals: tuple[Removal, ...]
    dense_cost: tuple[int, int]
    """parameters and MACs"""
    compact_cost: tuple[int, int]
    certificate: Certificate


def state_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a model's state dict."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}


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
    for axis, keep in positions.items():
        composed[axis] = composed[axis][keep] if axis in composed else keep
    return composed


def apply_record(model: nn.Module, record: CompactRecord) -> None:
    """Give a fresh dense network the shape of the compact one, in place."""
    slice_module(model, record.positions)
    with torch.no_grad():
        remove(model, list(record.removals))
