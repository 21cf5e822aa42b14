"""What was done to a network to make it compact: enough to do it again to a fresh copy, and what depl0.info tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any

from torch import Tensor, nn

from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.costs.count import Cost
from depl0.equivalence.certificate import Certificate
from depl0.equivalence.probe import describe
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.replacements.base import Replacement
from depl0.replacements.constant import ConstantReplacement, Removal
from depl0.surgery.cut import cut_to

_ATTRIBUTE = "_depl0_compact_record"
_WRITERS = {"transformers": "depl0.integrations.transformers"}
"""Libraries whose own ``save_pretrained`` cannot describe layers of different widths, and the module that can."""


@dataclass(frozen=True)
class Agreement:
    """How far a compact network agrees with the dense one, on inputs that it was not fitted to. No labels are used."""

    inputs: int
    """examples that were held back"""
    error: float
    """squared error of the outputs, relative to their mean square"""
    equal: float | None = None
    """share of equal answers (the class with the highest score); None where outputs are not class scores"""
    kl: float | None = None
    """KL(dense ‖ compact) in nats, the mean over answers"""
    outputs: Mapping[str, Agreement] | None = None
    """of each output, by name, if there are several; the figures above are their means"""

    def __str__(self) -> str:
        words = f"on {self.inputs} inputs held back"
        if self.equal is None or self.kl is None:
            return f"relative squared error {self.error:.3g} {words}"
        return f"{self.equal:.1%} equal answers, KL {self.kl:.3g} {words}"


@dataclass(frozen=True)
class RecoveryRecord:
    """What a training after the cut did."""

    steps: int
    """that were taken"""
    before: float | None
    """loss on held-out inputs at the cut; None if it was not measured"""
    after: float | None
    """loss on held-out inputs in the end"""

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.steps} steps with labels"
        return f"{self.steps} steps, held-out loss {self.before:.3g} -> {self.after:.3g}"


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
    agreement: Agreement | None = None
    """with the dense network, where inputs were held back to measure it"""
    recovery: RecoveryRecord | None = None
    """what a training after the cut did, if :func:`depl0.prune` made one"""

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
    if hasattr(type(model), "save_pretrained") and _library(model) is not None:
        model.__dict__["save_pretrained"] = MethodType(_save_pretrained, model)


def forget(model: nn.Module) -> None:
    """Take the record from a network."""
    model.__dict__.pop(_ATTRIBUTE, None)
    model.__dict__.pop("save_pretrained", None)


def _library(model: nn.Module) -> str | None:
    libraries = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    return next((library for library in libraries if library in _WRITERS), None)


def _save_pretrained(model: nn.Module, save_directory: Any, **kwargs: Any) -> Any:
    """Write a pruned network in the format of its library, in place of the library's own method."""
    return import_module(_WRITERS[_library(model) or ""]).save_pretrained(model, save_directory, **kwargs)


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


def record_cut(
    before: nn.Module,
    after: nn.Module,
    plan: Plan,
    positions: Mapping[Axis, Tensor],
    certificate: Certificate,
    example: ExampleInputs,
    costs: tuple[tuple[int, int], tuple[int, int]],
    removals: Sequence[Removal] = (),
) -> None:
    """Keep with a smaller network what was cut to make it, relative to the dense one.

    ``costs`` are parameters and MACs of the dense and of the smaller network. ``before`` may itself have been cut.
    """
    earlier = record_of(before)
    dense, compact = costs
    record = CompactRecord(
        network=type(before).__name__,
        dense_shapes=earlier.dense_shapes if earlier else state_shapes(before),
        positions=compose(earlier, positions),
        replacements={
            **(earlier.replacements if earlier else {}),
            **plan.replacements,
            **{removal.layer: ConstantReplacement(removal) for removal in removals},
        },
        dense_cost=earlier.dense_cost if earlier else dense,
        compact_cost=compact,
        certificate=certificate,
        inputs=example.shapes(),
        probe=describe(example),
    )
    remember(after, record)


# -- depl0.info --------------------------------------------------------------------------------------------------------


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
    agreement: Agreement | None = None
    """with the dense network, where :func:`depl0.prune` held inputs back to measure it"""
    recovery: RecoveryRecord | None = None
    """what the training after the cut did, if :func:`depl0.prune` made one"""

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
        lines += [f"  drawn        {'; '.join(proof.drawn)}"] if proof.drawn else []
        lines += [f"  not verified {what}" for what in proof.refused]
        if self.agreement is not None:
            lines.append(f"  agreement    {self.agreement}")
            lines += [f"    {name}: {found}" for name, found in (self.agreement.outputs or {}).items()]
        if self.recovery is not None:
            lines.append(f"  recovery     {self.recovery}")
        if self.removed:
            lines.append(f"  removed      {', '.join(self.removed)}")
        width = max([len(layer) for layer in self.channels] + [0])
        lines += [f"  {layer:<{width}}  {left} of {before}" for layer, (left, before) in self.channels.items()]
        return "\n".join(lines)


def info(compact: nn.Module) -> CompactInfo:
    """Return what was cut from a compact network, what it costs, and how it was verified.

    The figures are those of the extraction; further training does not change them.

    Args:
        compact: what ``gated.extract()``, ``search.finish()`` or ``depl0.load(...)`` returned.

    Raises:
        InputError: if the network is not a compact one.

    Example:
        >>> import torch, depl0
        >>> network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        >>> gated = depl0.attach(network, torch.zeros(1, 1, 8, 8))
        >>> gated.engine.fix_gates((torch.arange(8) < 2).float())
        >>> info(gated.extract()).channels
        {'0': (2, 8)}
    """
    record = record_of(compact) if isinstance(compact, nn.Module) else None
    if record is None:
        raise InputError(
            f"expected a compact network, got {type(compact).__name__} instead.",
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
        agreement=record.agreement,
        recovery=record.recovery,
    )


def _channels(record: CompactRecord) -> dict[str, tuple[int, int]]:
    """Return the layers that have lost output channels: the first dimension of a weight with several."""
    found = {}
    for name, shape in record.dense_shapes.items():
        layer, _, tensor = name.rpartition(".")
        kept = record.positions.get((name, 0))
        if tensor == "weight" and len(shape) > 1 and kept is not None:
            found[layer] = (len(kept), shape[0])
    return found
