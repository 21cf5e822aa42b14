"""What is known of a compact network: cost before and after, certificate, what was cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from depl0.costs.count import Cost
from depl0.equivalence.certificate import Certificate
from depl0.errors import InputError
from depl0.surgery.record import CompactRecord, record_of


@dataclass(frozen=True)
class CompactInfo:
    """A compact network in figures."""

    network: str
    """class name"""
    dense: Cost
    """what the network cost before"""
    compact: Cost
    """what it costs now"""
    certificate: Certificate
    """how far the compact network is from the gated one that it was cut from"""
    channels: Mapping[str, tuple[int, int]]
    """layer that has lost output channels -> (left, before)"""
    removed: tuple[str, ...]
    """layers that were taken out as a whole"""
    inputs: tuple[tuple[int, ...], ...]
    """shapes of the example inputs, where they were tensors alone"""

    @property
    def macs_left(self) -> float:
        """Return the share of the MACs that is left."""
        return self.compact.macs / self.dense.macs

    @property
    def params_left(self) -> float:
        """Return the share of the parameters that is left."""
        return self.compact.params / self.dense.params

    def __str__(self) -> str:
        proof = self.certificate
        lines = [
            f"{self.network}, compact",
            f"  dense        {self.dense}",
            f"  compact      {self.compact}",
            f"  left         {self.macs_left:.1%} of the MACs, {self.params_left:.1%} of the parameters",
            f"  certificate  largest error {proof.max_error:.1e} on {proof.inputs} inputs in {proof.dtype}",
        ]
        if self.removed:
            lines.append(f"  removed      {', '.join(self.removed)}")
        width = max([len(layer) for layer in self.channels] + [0])
        lines += [f"  {layer:<{width}}  {left} of {before}" for layer, (left, before) in self.channels.items()]
        return "\n".join(lines)


def info(compact: nn.Module) -> CompactInfo:
    """Tell what was cut from a compact network, what it costs, and how it was verified; also of a loaded one.

    The figures are those of the extraction: training on does not change them.
    """
    record = record_of(compact) if isinstance(compact, nn.Module) else None
    if record is None:
        raise InputError(
            f"only a compact network has something to tell, got {type(compact).__name__} instead.",
            hint="pass what gated.extract(), search.finish() or depl0.load(...) returned.",
        )
    return CompactInfo(
        network=record.network,
        dense=Cost(*record.dense_cost),
        compact=Cost(*record.compact_cost),
        certificate=record.certificate,
        channels=_channels(record),
        removed=record.removed,
        inputs=record.inputs,
    )


def _channels(record: CompactRecord) -> dict[str, tuple[int, int]]:
    """Return the layers whose outputs became fewer: the first dimension of a weight with several, or its bias."""
    found = {}
    for name, shape in record.dense_shapes.items():
        layer, _, tensor = name.rpartition(".")
        kept = record.positions.get((name, 0))
        if tensor == "weight" and len(shape) > 1 and kept is not None:
            found[layer] = (len(kept), shape[0])
    return found
