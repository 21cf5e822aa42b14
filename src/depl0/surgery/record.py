"""What was done to a network to make it compact: enough to do it again to a fresh copy of the dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from depl0.analysis.propagate import Axis
from depl0.equivalence.certificate import Certificate
from depl0.replacements.base import Replacement
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
    replacements: Mapping[str, Replacement]
    """modules of the dense network that have another in their place, or need one if they lost channels"""
    dense_cost: tuple[int, int]
    """parameters and MACs"""
    compact_cost: tuple[int, int]
    certificate: Certificate
    inputs: tuple[tuple[int, ...], ...] = ()
    """shapes of the example inputs; empty where they were not just tensors, or not written down"""
    probe: Any = None
    """a description of inputs on which a loaded network is verified; None where there is none"""

    @property
    def removed(self) -> tuple[str, ...]:
        """Layers that were taken out as a whole."""
        return tuple(path for path, replacement in self.replacements.items() if replacement.removes_layer)


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
    """Return where an axis is in the dense network: a replacement may have tensors that were made of others."""
    for path, replacement in earlier.replacements.items():
        names = replacement.dense_names(path, axis[0])
        if names is not None:
            return [(name, 0) for name in names if name in earlier.dense_shapes]
    return [axis]


def apply_record(model: nn.Module, record: CompactRecord) -> None:
    """Give a fresh dense network the shape of the compact one, in place."""
    cut_to(model, record.positions, record.replacements)
