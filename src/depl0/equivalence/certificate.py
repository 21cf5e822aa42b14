"""Certificate that the pruned model and the gated model compute the same outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from depl0._util.tensors import as_precise_as_possible, cast
from depl0.analysis.plan import Plan
from depl0.equivalence.cases import Accepted, accepted_cases, has_finite_numbers, similar_cases
from depl0.equivalence.comparison import (
    NETWORKS,
    NOT_INDEPENDENT,
    Comparison,
    Subject,
    compare,
    compare_in_training,
    stands_for,
)
from depl0.errors import CertificateError
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import attributes_kept, forbid_access_to, isolated_deepcopy
from depl0.host.inputs import ExampleInputs, output_tensors
from depl0.host.network import first_line
from depl0.replacements.constant import Removal, remove


@dataclass(frozen=True)
class Certificate:
    """Difference between the outputs of two networks on the same inputs."""

    max_error: float
    """Largest difference, relative to the change of the outputs from input to input."""
    dtype: str
    inputs: int
    """Number of inputs compared, including the example."""
    covered: tuple[str, ...] = ()
    """The compared cases: the example, random inputs, other batches and sizes, training mode."""
    refused: tuple[str, ...] = ()
    """The cases that could not be compared, because the network does not run on them."""


def certify(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    removals: Sequence[Removal],
    example: ExampleInputs,
    plan: Plan,
) -> Certificate:
    """Compare the host with gates and the pruned model.

    Copies of both run in float64, in evaluation mode, on every kind of input that the host accepts, then in training
    mode. The host itself also runs, in its own precision. ``removals`` are applied to the compared copy, in its
    precision: a norm that is folded into a constant is rounded to the network's own precision, and this rounding does
    not count as a difference.

    Raises:
        CertificateError: if outputs differ.
    """
    with forbid_access_to(host):

        def run(dtype: torch.dtype | None) -> tuple[Subject, Accepted]:
            reference = Subject.copy_of(host, scaled, dtype)
            with attributes_kept(reference.model):  # for example caches in this precision
                return reference, accepted_cases(reference, example, plan.index_limits)

        (reference, wanted), dtype = as_precise_as_possible(run)
        _check_finite(wanted)
        candidate = Subject.copy_of(compact, {}, dtype)
        for name in {name for removal in removals for name in (removal.layer, removal.norm) if name is not None}:
            candidate.model.get_submodule(name)._apply(partial(cast, dtype=dtype))
        remove(candidate.model, removals)
        with attributes_kept(candidate.model):
            result = compare(wanted, candidate, NETWORKS.at(dtype, host))
        if not result.agrees:
            if not reference.is_deterministic(result.case.inputs):
                raise CertificateError(
                    "the network's evaluation pass gives other outputs each time, on the same input. "
                    "Nothing is returned.",
                    hint="a pruned network can be compared only if randomness is for training.",
                )
            raise _difference(result, "" if result.case is wanted.cases[0] else f" ({result.case.what})", plan)
        covered, refused = [*wanted.covered], [*wanted.refused]
        if not removals:  # a norm folded into a constant had batch statistics in training mode
            in_training = compare_in_training(reference, candidate, wanted, plan.same_in_training)
            if in_training is not None and not in_training.agrees:
                raise _difference(in_training, " in training mode", plan)
            (refused if in_training is None else covered).append("training mode")
    if not _copy_stands_for(host, scaled, wanted):
        raise CertificateError(
            "the compact network agrees with a copy of the gated network, but not with the network itself. "
            "Nothing is returned.",
            hint=NOT_INDEPENDENT,
        )
    dtype_name, inputs = precision_name(dtype, host), len(wanted.cases)
    return Certificate(result.error, dtype_name, inputs, tuple(covered), tuple(refused))


def precision_name(dtype: torch.dtype | None, model: nn.Module) -> str:
    """Return the name of the precision in which a network was compared."""
    return str(dtype or next(model.parameters()).dtype).removeprefix("torch.")


def _copy_stands_for(host: nn.Module, scaled: Mapping[str, Tensor], wanted: Accepted) -> bool:
    """Return True if the host itself computes its copy's outputs; a copy in its own precision is tried next."""
    case, output = wanted.smallest
    if stands_for(host, case.inputs, output, scaled):
        return True
    with forbid_access_to(host):
        output = Subject.copy_of(host, scaled, None)(case.inputs)
    return stands_for(host, case.inputs, output, scaled)


def _difference(result: Comparison, where: str, plan: Plan) -> CertificateError:
    """Return an error with the difference or the exception, and with the way to find the group at fault."""
    differs = f"differs from the gated one by {result.error:.2g} (allowed {result.allowed:g})"
    if result.failure is not None:
        text = f"{type(result.failure).__name__}: {first_line(result.failure)}"
        differs = f"does not run ({text}, at layer {result.layer or 'unknown'})"
    first = next((group.name for group in plan.groups if group.name), "name")
    return CertificateError(
        f"the compact network {differs}{where}. Nothing is returned.",
        hint=f"leave groups out, such as groups=['-{first}'], until it agrees, and report the network.",
    )


def _check_finite(wanted: Accepted) -> None:
    """Raise an error for a network whose outputs are all NaN or infinite."""
    if not all(map(has_finite_numbers, wanted.outputs)):
        raise CertificateError(
            "the gated network gives no finite output, so nothing can be compared. Nothing is returned.",
            hint="its training has diverged: look for NaN in its parameters, or go back to an earlier checkpoint.",
        )


def depends_on_input(plan: Plan, host: nn.Module, gates: Tensor, example: ExampleInputs) -> bool:
    """Return True if the outputs differ between random inputs with these gates.

    Closing a whole group leaves the shortcut around a block, but disconnects a plain chain.
    """
    gated = Subject(isolated_deepcopy(host).eval(), scaled_parameters(plan, host, gates))
    found = similar_cases(gated, example.on_device_of(host), 2, plan.index_limits)
    first, *others = [output_tensors(result) for result in found.outputs]
    return any(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
