"""The trial of a plan: cut a third to two thirds of every group out of a copy, which must still run and agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.progress import check_stop
from depl0._util.tensors import cast
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.analysis.recording import user_line
from depl0.equivalence.cases import Accepted, Case
from depl0.equivalence.certificate import unrounded_tensors
from depl0.equivalence.comparison import (
    NETWORKS,
    Subject,
    compare,
    compare_in_training,
    first_difference,
    is_half_precision,
)
from depl0.errors import Depl0Error, TraceError
from depl0.host.copies import attributes_kept, private_copy
from depl0.surgery.extraction import fold_and_cut
from depl0.surgery.slicing import kept_gates, kept_positions

GOLDEN_RATIO = 0.5 * (5**0.5 - 1)
NOT_DETERMINISTIC = "a pruned network can be compared only if randomness is for training: if self.training: ..."


@dataclass(frozen=True)
class Failure:
    """The position at which a trial cut fails: the cut network cannot be run there, or computes other values."""

    case: str
    layer: str
    line: str = ""
    """The line of forward that raised, as printed in a traceback; "" if only values differ."""
    training: bool = False

    @property
    def reason(self) -> str:
        """Return the reason why the channels at fault cannot be pruned."""
        return "its size is fixed in the code of forward" if self.line else "its number of channels changes the values"


class Trial:
    """Tries plans on a copy of the host whose weights are changed so that zeros cannot hide errors."""

    def __init__(self, model: nn.Module, cases: Sequence[Case]) -> None:
        self._plain = model
        self._model, self._cases = _in_full_precision(_livened(model), cases)
        self.guessed = False
        """True if an assumption was made after a failure; then the example is compared in float64 as well."""
        self.covered: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()

    def run(self, plan: Plan, spared: Collection[str] = ()) -> Failure | None:
        """Cut and compare, in evaluation mode on every input, and in training mode; ``spared`` groups are not cut."""
        try:
            return self._run(plan, spared)
        except _UnlivelyError:  # the network does not run with other weights
            self._model, self._cases = _in_full_precision(self._plain, self._cases)
            return self._run(plan, spared)

    def _run(self, plan: Plan, spared: Collection[str]) -> Failure | None:
        check_stop()
        gates = trial_gates(plan)
        for group in plan.groups:
            if group.name in spared:
                gates[group.gates] = 1.0
        kept = kept_gates(plan, gates > 0, gates)
        compact, scaled = fold_and_cut(plan, self._model, gates, kept)
        positions = kept_positions(plan, kept)
        exact = unrounded_tensors(self._model, scaled, positions, plan)
        wanted, failure = self._evaluate(compact, scaled, positions, None if plan.works_in_float32 else exact)
        return failure or self._train(compact, scaled, positions, wanted, plan.same_in_training)

    def _evaluate(
        self,
        compact: nn.Module,
        scaled: Mapping[str, Tensor],
        positions: Mapping[Axis, Tensor],
        exact: Mapping[str, Tensor] | None,
    ) -> tuple[Accepted, Failure | None]:
        """Compare in evaluation mode, the smallest case in float64 like the certificate, the others in float32.

        Small weights may hide errors below the rounding of float32, and a single token may hide the scale of attention.
        Therefore, after an assumption the example is compared as well. ``exact`` are tensors of the smaller network
        before they were rounded; None if only rounding would differ in float64. Also returns the larger network's
        outputs.
        """
        cases, given = self._cases, dict[int, Any]()
        if exact is not None:
            with attributes_kept(self._model), attributes_kept(compact):
                precise, failure = self._evaluate_in_float64(compact, scaled, positions, exact)
            if failure is not None:
                return precise, failure
            cases = [case for case in cases if all(case is not other for other in precise.cases)]
            given.update(zip(map(id, precise.cases), precise.outputs, strict=True))
        reference = Subject(self._model, scaled)
        try:
            wanted = Accepted(tuple(cases), tuple(reference(case.inputs) for case in cases))
        except Depl0Error:
            raise
        except Exception as error:
            raise _UnlivelyError from error
        failure = _difference(wanted, reference, Subject(compact), positions, NETWORKS.float32) if cases else None
        self.covered = tuple(case.what for case in self._cases)
        given.update(zip(map(id, cases), wanted.outputs, strict=True))
        return Accepted(tuple(self._cases), tuple(given[id(case)] for case in self._cases)), failure

    def _evaluate_in_float64(
        self,
        compact: nn.Module,
        scaled: Mapping[str, Tensor],
        positions: Mapping[Axis, Tensor],
        exact: Mapping[str, Tensor],
    ) -> tuple[Accepted, Failure | None]:
        """Return the cases that were compared; none if the network requires another precision inside."""
        smallest = min(self._cases[1:] or self._cases, key=lambda case: case.inputs.numbers())
        chosen = tuple(case for case in self._cases if case is smallest or (self.guessed and case is self._cases[0]))
        precise = _in_float64(self._model, scaled)
        try:
            wanted = Accepted(chosen, tuple(precise(case.inputs) for case in chosen))
        except Depl0Error:
            raise
        except Exception:
            return Accepted((), ()), None
        candidate = _in_float64(compact, {}).before_rounding(exact)
        return wanted, _difference(wanted, precise, candidate, positions, NETWORKS.float64)

    def _train(
        self,
        compact: nn.Module,
        scaled: Mapping[str, Tensor],
        positions: Mapping[Axis, Tensor],
        evaluated: Accepted,
        same_in_training: bool,
    ) -> Failure | None:
        result = compare_in_training(self._model, scaled, compact, evaluated, positions, same_in_training)
        if result is None:
            self.refused = ("training mode",)
            return None
        if result.agrees:
            self.covered += ("training mode",)
            return None
        line = "" if result.failure is None else user_line(result.failure)
        return Failure(self._cases[0].what, result.layer, line, training=True)


def _in_float64(model: nn.Module, tensors: Mapping[str, Tensor]) -> Subject:
    """Return a network in float64, without a copy."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers()), **tensors}
    return Subject(model, {name: cast(tensor.detach(), torch.float64) for name, tensor in own.items()}, torch.float64)


def _difference(
    wanted: Accepted, reference: Subject, candidate: Subject, positions: Mapping[Axis, Tensor], allowed: float
) -> Failure | None:
    """Return the first difference of a smaller network from the wanted outputs."""
    result = compare(wanted, candidate, allowed)
    if result.failure is not None:
        return Failure(result.case.what, result.layer, user_line(result.failure))
    if result.agrees:
        return None
    if not reference.is_deterministic(result.case.inputs):
        name = type(reference.model).__name__
        raise TraceError(
            f"the evaluation pass of {name} gives other outputs each time, on the same input.",
            hint=NOT_DETERMINISTIC,
        )
    return Failure(result.case.what, first_difference(reference, candidate, result.case, positions, result.allowed))


def trial_gates(plan: Plan) -> Tensor:
    """Return random gates that close a third to two thirds of every group, with distinct fractions for neighbours.

    Code that uses the width of one group for another (``v.reshape(x.shape)``) fails unless both keep the same fraction.
    Equal fractions would hide the failure, and random ones might be equal by chance. Steps of the golden ratio separate
    the fractions of groups that are close to each other.
    """
    gates = torch.rand(plan.num_gates, generator=torch.Generator().manual_seed(0)).clamp_min(1e-3)
    for number, group in enumerate(plan.groups):
        own = gates[group.gates]
        share = 1 / 3 + ((number + 1) * GOLDEN_RATIO % 1) / 3
        closed = min(max(round(share * group.size), 1), group.size - 1)
        own[own.argsort()[:closed]] = 0.0
    return gates


class _UnlivelyError(Exception):
    """The network does not run with other weights or with gates."""


def _livened(model: nn.Module) -> nn.Module:
    """Return a copy in which no parameter is all zeros or all ones, because a head of zeros hides every error."""
    lively = private_copy(model).eval()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in lively.parameters():
            if not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            first = float(parameter.flatten()[0])
            if not bool((parameter == first).all()) or (parameter.numel() == 1 and first != 0):
                continue
            noise = torch.rand(parameter.shape, generator=rng)
            if sum(size > 1 for size in parameter.shape) > 1:
                noise = (noise - 0.5) / (parameter.numel() / len(parameter)) ** 0.5
            elif abs(first) >= 0.1:
                noise = first * (0.8 + 0.4 * noise)
            else:
                noise = 0.1 + 0.2 * noise
            parameter.copy_(noise)
    return lively


def _in_full_precision(model: nn.Module, cases: Sequence[Case]) -> tuple[nn.Module, list[Case]]:
    """Return a float32 form of a half-precision network, whose rounding would hide errors in the trial."""
    if not is_half_precision(model):
        return model, list(cases)
    full = private_copy(model).float().eval()
    full_cases = [Case(case.what, case.inputs.map_tensors(partial(cast, dtype=torch.float32))) for case in cases]
    try:
        with torch.no_grad():
            for case in full_cases:
                case.inputs.call(full)
    except Depl0Error:
        raise
    except Exception:  # it requires half precision inside
        return model, list(cases)
    return full, full_cases
