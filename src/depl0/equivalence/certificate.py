"""Proof that the compact network computes what the gated network computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.precision import cast
from depl0.analysis.bounds import compared_sizes
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.equivalence.cases import Accepted, accepted, similar
from depl0.equivalence.compare import (
    BOUND,
    TOLERANCE,
    case_errors,
    converted,
    copy_stands_for,
    first_difference,
    gated_call,
    gives_the_same_twice,
    own_tolerance,
)
from depl0.equivalence.training_mode import training_difference
from depl0.errors import CertificateError, Depl0Error
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import private_copy, untouched
from depl0.host.inputs import ExampleInputs, output_tensors
from depl0.replacements.base import exact_tensors
from depl0.replacements.constant import Removal, remove
from depl0.replacements.weight_norm import exact_lengths


@dataclass(frozen=True)
class Certificate:
    """How far the outputs of two networks are apart on the same inputs."""

    max_error: float
    """largest difference, relative to how much the outputs change from input to input"""
    dtype: str
    inputs: int
    """number of inputs compared: the example, and others"""
    covered: tuple[str, ...] = ()
    """what was compared: the example, random inputs, other batches and sizes, training mode"""
    refused: tuple[str, ...] = ()
    """what could not be compared, because the network does not run on it"""


def certify(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    removals: Sequence[Removal],
    example: ExampleInputs,
    positions: Mapping[Axis, Tensor],
    plan: Plan | None = None,
) -> Certificate:
    """Compare host-with-gates and compact network; raise if they differ.

    Copies of both run in float64, in evaluation mode, on every kind of input that the host accepts, then in
    training mode; the host itself is run too, in its own precision. ``removals`` are carried out on the copy that is
    compared,
    in its precision: a norm that is folded into a constant is rounded to the network's own precision, which is no
    difference between the two.
    """
    exact = {
        **exact_lengths(host, scaled, positions),
        **exact_tensors(host, positions, plan.replacements if plan else {}),
    }
    with untouched(host):
        try:
            single = plan is not None and plan.works_in_float32
            compared, worst, dtype = _compare_copies(host, scaled, compact, removals, example, positions, exact, single)
        except _DiffersError as error:
            raise error.in_words(plan) from None
        covered, refused = [*compared.covered], [*compared.refused]
        if not removals:  # a norm that was folded into a constant had batch statistics in training mode
            try:
                in_training = _compare_training(host, scaled, compact, compared, positions)
            except _DiffersError as error:
                raise error.in_words(plan) from None
            (covered if in_training else refused).append("training mode")
    if not _stands_for(host, scaled, compared, example):
        raise CertificateError(
            "the compact network agrees with a copy of the gated network, but not with the network itself. "
            "Nothing is returned.",
            hint=BOUND,
        )
    return Certificate(worst, str(dtype).removeprefix("torch."), len(compared.cases), tuple(covered), tuple(refused))


def _stands_for(host: nn.Module, scaled: Mapping[str, Tensor], compared: Accepted, example: ExampleInputs) -> bool:
    """Tell whether the host itself gives what its copy has given; a copy in its own precision is the second try."""
    fresh = compared.cases[-1].inputs.like(example)
    if copy_stands_for(host, fresh, compared.outputs[-1], scaled):
        return True
    with untouched(host), torch.no_grad():
        output = gated_call(private_copy(host).eval(), scaled)(fresh)
    return copy_stands_for(host, fresh, output, scaled)


def _compare_copies(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    removals: Sequence[Removal],
    example: ExampleInputs,
    positions: Mapping[Axis, Tensor],
    exact: Mapping[str, Tensor],
    single: bool,
) -> tuple[Accepted, float, torch.dtype]:
    dtypes = (torch.float64, torch.float32, None)  # None: as it is, for a network of several precisions
    for dtype in dtypes[1:] if single else dtypes:
        reference, candidate = (
            converted(private_copy(host).eval(), dtype),
            converted(private_copy(compact).eval(), dtype),
        )
        remove(candidate, removals)
        for name, tensor in [*candidate.named_parameters(), *candidate.named_buffers()]:
            if name in exact:
                tensor.data.copy_(exact[name])
        gated = gated_call(reference, {name: cast(tensor.detach(), dtype) for name, tensor in scaled.items()})
        try:
            with torch.no_grad():
                inputs = example.map_tensors(partial(cast, dtype=dtype))
                compared = accepted(gated, inputs, compared_sizes(host))
        except RuntimeError:
            if dtype is None:
                raise
            continue  # the network insists on its precision somewhere inside
        tolerated = dtype or torch.float32
        _check_finite(list(compared.outputs))
        found = [_run(candidate, case.inputs) for case in compared.cases]
        errors = case_errors(list(compared.outputs), found, tolerated)
        worst, allowed = max(errors), TOLERANCE[tolerated] if dtype is not None else own_tolerance(host)
        if not worst <= allowed:
            case = compared.cases[errors.index(worst)]
            if not gives_the_same_twice(gated, case.inputs):
                raise CertificateError(
                    "the network's evaluation pass gives other outputs each time, on the same input. "
                    "Nothing is returned.",
                    hint="a pruned network can be compared only if randomness is for training.",
                )
            layer = first_difference(gated, reference, candidate, case.inputs, positions, allowed)
            where = "" if case is compared.cases[0] else f" ({case.what})"
            raise _DiffersError(worst, allowed, layer, where)
        return compared, worst, tolerated if dtype is not None else next(host.parameters()).dtype
    raise AssertionError("unreachable")


def _groups_at(plan: Plan, layer: str) -> list[str]:
    """Return what leaves out the groups whose gates govern a layer's inputs or outputs."""
    gates = {int(g) for (name, _), axis in plan.axes.items() if name.rpartition(".")[0] == layer for g in axis}
    return [f"-{group.name}" for group in plan.groups if gates & set(range(group.offset, group.offset + group.size))]


class _DiffersError(Exception):
    """Two networks differ, first at some layer."""

    def __init__(self, error: float, allowed: float, layer: str, where: str) -> None:
        super().__init__(layer)
        self.error, self.allowed, self.layer, self.where = error, allowed, layer, where

    def in_words(self, plan: Plan | None) -> CertificateError:
        """Say what differs, and which group to leave out."""
        groups = _groups_at(plan, self.layer) if plan is not None else []
        out = f"leave that layer's groups out, groups={groups}" if groups else "leave the groups before it out"
        return CertificateError(
            f"the compact network differs from the gated one by {self.error:.2g} (allowed {self.allowed:g})"
            f"{self.where}, first at layer {self.layer or 'unknown'}. Nothing is returned.",
            hint=f"{out}, and report the network.",
        )


def _compare_training(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    compared: Accepted,
    positions: Mapping[Axis, Tensor],
) -> bool:
    """Compare both in training mode with randomness held; False where that cannot be done."""
    difference = training_difference(host, scaled, compact, compared.cases, positions)
    if difference is None or difference.error <= difference.allowed:
        return difference is not None
    raise _DiffersError(difference.error, difference.allowed, difference.layer, " in training mode")


def _check_finite(wanted: list[Any]) -> None:
    """Refuse to compare a network that gives nothing but NaN and infinities."""
    for outputs in wanted:
        numbers = [
            leaf for leaf in output_tensors(outputs) if (leaf.is_floating_point() or leaf.is_complex()) and leaf.numel()
        ]
        if numbers and not any(bool(leaf.isfinite().any()) for leaf in numbers):
            raise CertificateError(
                "the gated network gives no finite output, so nothing can be compared. Nothing is returned.",
                hint="its training has diverged: look for NaN in its parameters, or go back to an earlier checkpoint.",
            )


def _run(candidate: nn.Module, case: ExampleInputs) -> Any:
    try:
        with torch.no_grad():
            return case.call(candidate)
    except Depl0Error:
        raise
    except Exception as error:  # a compact network that does not run is as different as can be
        return error


def reacts(plan: Plan, host: nn.Module, gates: Tensor, example: ExampleInputs) -> bool:
    """Tell whether the outputs differ between random inputs with these gates.

    Closing a whole group leaves the shortcut around a block, but cuts a plain chain in two.
    """
    scaled = scaled_parameters(plan, host, gates)
    copied = private_copy(host).eval()
    with torch.no_grad():
        found = similar(gated_call(copied, scaled), example.on_device_of(host), 2)
    first, *others = [output_tensors(result) for result in found.outputs]
    return any(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
