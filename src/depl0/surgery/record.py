"""The record of a pruned model: the cuts to repeat on a fresh copy, and the data of ``depl0.info``."""

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

_ATTRIBUTE = "_depl0_compact_record"


@dataclass(frozen=True)
class Agreement:
    """Agreement of a pruned model with the original one on held-out inputs. No labels are used."""

    inputs: int
    """Number of held-out examples."""
    error: float
    """Squared error of the outputs, relative to their mean square."""
    equal: float | None = None
    """Fraction of equal predictions (the class with the highest score); None if outputs are not class scores."""
    kl: float | None = None
    """KL(original ‖ pruned) in nats, the mean over predictions."""
    outputs: Mapping[str, Agreement] | None = None
    """The agreement of each output, by name, if there are several; the values above are their means."""

    def __str__(self) -> str:
        words = f"on {self.inputs} inputs held back"
        if self.equal is None or self.kl is None:
            return f"relative squared error {self.error:.3g} {words}"
        return f"{self.equal:.1%} equal answers, KL {self.kl:.3g} {words}"


@dataclass(frozen=True)
class RecoveryRecord:
    """The result of a training after the cut."""

    steps: int
    """Number of steps."""
    before: float | None
    """Loss on held-out inputs at the cut; None if it was not measured."""
    after: float | None
    """Loss on held-out inputs at the end."""

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.steps} steps with labels"
        return f"{self.steps} steps, held-out loss {self.before:.3g} -> {self.after:.3g}"


@dataclass(frozen=True)
class CompactRecord:
    """The cuts of a pruned model relative to the original one, its costs, and how it was verified."""

    network: str
    """Class name of the original model."""
    dense_shapes: Mapping[str, tuple[int, ...]]
    """Shape of every parameter and buffer of the original model."""
    positions: Mapping[Axis, Tensor]
    replacements: Mapping[str, Replacement]
    """Modules of the original model that are replaced, or that need a replacement if they lost channels."""
    dense: Cost
    """Cost of the original model."""
    compact: Cost
    """Cost of the pruned model."""
    certificate: Certificate
    """Difference between the outputs of the pruned model and of the gated model it was cut from."""
    inputs: tuple[tuple[int, ...], ...] = ()
    """Shapes of the example inputs; empty if they were not only tensors, or not recorded."""
    probe: Any = None
    """A description of inputs on which a loaded network is verified; None if there is no description."""
    agreement: Agreement | None = None
    """Agreement with the original model, if inputs were held out to measure it."""
    recovery: RecoveryRecord | None = None
    """The result of a training after the cut, if :func:`depl0.prune` ran one."""

    @property
    def removed(self) -> tuple[str, ...]:
        """Layers that were removed as a whole."""
        return tuple(path for path, replacement in self.replacements.items() if replacement.removes_layer)

    @property
    def channels(self) -> dict[str, tuple[int, int]]:
        """Return the layers that have lost output channels -> (kept, original)."""
        found = {}
        for name, shape in self.dense_shapes.items():
            layer, _, tensor = name.rpartition(".")
            kept = self.positions.get((name, 0))
            if tensor == "weight" and len(shape) > 1 and kept is not None:
                found[layer] = (len(kept), shape[0])
        return found

    @property
    def macs_left(self) -> float:
        """Return the remaining fraction of the MACs."""
        return self.compact.macs / self.dense.macs

    @property
    def params_left(self) -> float:
        """Return the remaining fraction of the parameters."""
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
        lines += [f"  not verified {what}" for what in proof.refused]
        if self.agreement is not None:
            lines.append(f"  agreement    {self.agreement}")
            lines += [f"    {name}: {found}" for name, found in (self.agreement.outputs or {}).items()]
        if self.recovery is not None:
            lines.append(f"  recovery     {self.recovery}")
        if self.removed:
            lines.append(f"  removed      {', '.join(self.removed)}")
        width = max(map(len, self.channels), default=0)
        lines += [f"  {layer:<{width}}  {left} of {before}" for layer, (left, before) in self.channels.items()]
        return "\n".join(lines)


def state_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter and buffer, including buffers that are not saved: they are cut as well."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tuple(tensor.shape) for name, tensor in named}


def record_of(model: nn.Module) -> CompactRecord | None:
    """Return the record of a pruned model, or None for any other network."""
    return model.__dict__.get(_ATTRIBUTE)


def remember(model: nn.Module, record: CompactRecord) -> None:
    """Attach a record to its pruned model; deep copies keep it."""
    model.__dict__[_ATTRIBUTE] = record
    is_of_transformers = any(base.__module__.startswith("transformers.") for base in type(model).__mro__)
    if is_of_transformers and hasattr(model, "save_pretrained"):
        model.__dict__["save_pretrained"] = MethodType(_save_pretrained, model)


def forget(model: nn.Module) -> None:
    """Remove the record from a network."""
    model.__dict__.pop(_ATTRIBUTE, None)
    model.__dict__.pop("save_pretrained", None)


def _save_pretrained(model: nn.Module, save_directory: Any, **kwargs: Any) -> Any:
    """Write a pruned model; this replaces the method of transformers, which cannot describe its layers' widths."""
    module = import_module("depl0.integrations.transformers")  # which imports this module
    return module.save_pretrained(model, save_directory, **kwargs)


def compose(earlier: CompactRecord | None, positions: Mapping[Axis, Tensor]) -> dict[Axis, Tensor]:
    """Return kept positions relative to the original model, even if the host had been pruned before."""
    if earlier is None:
        return dict(positions)
    composed = dict(earlier.positions)
    for host_axis, keep in positions.items():
        for axis in _dense_axes(earlier, host_axis):
            composed[axis] = composed[axis][keep] if axis in composed else keep
    return composed


def _dense_axes(earlier: CompactRecord, axis: Axis) -> list[Axis]:
    """Return the axes of the original model for an axis: a replacement may merge several tensors into one."""
    for path, replacement in earlier.replacements.items():
        names = replacement.dense_names(path, axis[0])
        if names is not None:
            return [(name, 0) for name in names if name in earlier.dense_shapes]
    return [axis]


def record_cut(
    before: nn.Module,
    after: nn.Module,
    plan: Plan,
    positions: Mapping[Axis, Tensor],
    certificate: Certificate,
    example: ExampleInputs,
    dense: Cost,
    left: Cost,
    removals: Sequence[Removal] = (),
) -> None:
    """Attach the record of a cut to the smaller network, relative to the original model.

    ``dense`` and ``left`` are the costs of the original and of the smaller network; ``before`` may have been cut too.
    """
    earlier = record_of(before)
    record = CompactRecord(
        network=type(before).__name__,
        dense_shapes=earlier.dense_shapes if earlier else state_shapes(before),
        positions=compose(earlier, positions),
        replacements={
            **(earlier.replacements if earlier else {}),
            **plan.replacements,
            **{removal.layer: ConstantReplacement(removal) for removal in removals},
        },
        dense=earlier.dense if earlier else Cost(dense.params, dense.macs),
        compact=Cost(left.params, left.macs),
        certificate=certificate,
        inputs=example.shapes(),
        probe=describe(example),
    )
    remember(after, record)


def info(compact: nn.Module) -> CompactRecord:
    """Return the cuts of a pruned model, its cost, and how it was verified.

    The values are those of the extraction; further training does not change them.

    Args:
        compact: the pruned model from ``gated.extract()``, ``search.finish()`` or ``depl0.load(...)``.

    Raises:
        InputError: if the network is not a pruned model.

    Example:
        >>> import torch, depl0
        >>> network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        >>> gated = depl0.attach(network, torch.zeros(1, 1, 8, 8))
        >>> gated.fix_gates((torch.arange(8) < 2).float())
        >>> info(gated.extract()).channels
        {'0': (2, 8)}
    """
    record = record_of(compact) if isinstance(compact, nn.Module) else None
    if record is None:
        raise InputError(
            f"Expected a compact network, got {type(compact).__name__} instead.",
            hint="pass what gated.extract(), search.finish() or depl0.load(...) returned.",
        )
    return record
