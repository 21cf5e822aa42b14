"""Make a plan and try it: cut random channels out of a copy, which must still run and agree.

The recorded graph contains sizes as numbers. It cannot distinguish ``x.view(n, -1)``, which adapts to a smaller
network, from ``x.view(-1, 400)``, which does not. The trial can: if it fails, the channels at fault are marked as
unprunable, with the reason, and a new plan is made. So a user learns before the training which channels cannot be cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.process import library_defaults
from depl0._util.progress import check_stop
from depl0._util.random import isolated_random
from depl0._util.tensors import cast
from depl0.analysis.analyse import Analysis
from depl0.analysis.cause import Failure, mark_cause
from depl0.analysis.plan import GroupChoice, Plan, with_alone
from depl0.analysis.propagate import LayerUse
from depl0.analysis.recording import user_line
from depl0.analysis.traces import NOT_DETERMINISTIC, evaluation_copy, trace_cases
from depl0.costs.count import Cost, cost_of_copy, warn_of_uncounted
from depl0.costs.expected import ExpectedCost
from depl0.equivalence.cases import Accepted, Case
from depl0.equivalence.comparison import (
    NETWORKS,
    Subject,
    compare,
    compare_in_training,
    is_half_precision,
)
from depl0.errors import Depl0Error, TraceError
from depl0.host.copies import attributes_kept, forbid_access_to
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_finite, check_host
from depl0.replacements.base import kinds
from depl0.surgery.extraction import fold_and_cut
from depl0.surgery.slicing import kept_gates

__all__ = ["plan"]


@library_defaults()
def plan(model: nn.Module, example_inputs: Any, *, groups: GroupChoice = "all", alone: Collection[str] = ()) -> Plan:
    """Find the channels of a network that can be pruned; all others are unprunable, each with its reason.

    The model is not modified. ``print(plan)`` shows a table, layer by layer.

    Args:
        model: the network.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments; or a list of such examples, if
            the network takes other paths for other arguments.
        groups: "all" groups, "inner" ones (not added to a shortcut), names of groups, or a function that selects some.
        alone: layers with separate gates, which multiply without a cut (:mod:`depl0.analysis.plan`).

    Raises:
        InputError: if the network cannot be analysed: it does not run on the example, or copies of it are not
            independent.
        TraceError: if it cannot be recorded, or its evaluation pass is random.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        >>> plan(network, torch.randn(1, 3, 8, 8)).num_gates
        8
    """
    example = ExampleInputs.of(example_inputs)
    check_finite(check_host(model))
    with isolated_random():
        copy = evaluation_copy(model)
        traces = trace_cases(model, copy, example)
        analysis = Analysis(copy, list(traces.graphs), kinds())
        trial = Trial(model, copy, traces.cases)
        while True:
            result = with_alone(analysis.plan(groups), alone, [name for name, _ in copy.named_parameters()])
            result = replace(
                result,
                same_in_training=traces.same_in_training,
                index_limits=traces.index_limits,
                shared_inputs=traces.shared_inputs,
            )
            failure = trial.run(result)
            if failure is None:
                break
            mark_cause(analysis, traces.mode_of(failure), failure, partial(trial.run, result))
            trial.guessed = True
        result = replace(result, covered=trial.covered, refused=(*traces.refused, *trial.refused))
        if traces.cost is None:
            with forbid_access_to(model):
                dense = cost_of_copy(evaluation_copy(model), example)
        else:
            dense = traces.cost
        result = _with_costs(result, copy, dense)
    warn_of_uncounted(dense)
    return result


def _uses_of_one(plan: Plan, dense: Cost) -> Iterator[LayerUse]:
    """Yield every call of a layer with its cost for one image.

    The counted cost is divided among a layer's calls. Shapes recorded inside vmap are already those of one image, and a
    complex convolution consists of three real ones.
    """
    recorded = Counter[str]()
    for use in plan.uses:
        recorded[use.path] += use.macs_per_pair * use.out_size * (1 if use.in_axis is None else use.in_size)
    for use in plan.uses:
        counted, total = dense.layers.get(use.layer), recorded[use.path]
        macs = use.macs_per_pair // dense.images
        if counted is not None and use.path == use.layer and use.macs_per_pair * counted.macs % max(total, 1) == 0:
            macs = use.macs_per_pair * counted.macs // max(total, 1)
        yield replace(use, macs_per_pair=macs)


def _with_costs(plan: Plan, model: nn.Module, dense: Cost) -> Plan:
    """Add the cost of one input, dense and with all gates closed: prunable channels may be a small or large part."""
    uses = tuple(_uses_of_one(plan, dense))
    products = tuple(replace(product, macs=product.macs / dense.images) for product in plan.products)
    plan = replace(plan, uses=uses, products=products)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    kept = kept_gates(plan, torch.zeros(plan.num_gates, dtype=torch.bool), torch.zeros(plan.num_gates))
    least = ExpectedCost(plan, shapes, dense.macs).rounded(kept.float())
    return replace(
        plan,
        dense_cost=(dense.params, dense.macs),
        least_cost=(least.params, least.macs),
        dense_layers={name: (layer.params, layer.macs) for name, layer in dense.layers.items()},
    )


GOLDEN_RATIO = 0.5 * (5**0.5 - 1)


class Trial:
    """Tries plans on a copy of the host whose weights are changed so that zeros cannot hide errors."""

    def __init__(self, host: nn.Module, copy: nn.Module, cases: Sequence[Case]) -> None:
        """Prepare a trial of ``host`` on ``copy``, whose weights are changed in place."""
        self._host = host
        with forbid_access_to(host):
            self._model, self._cases = _randomize_constant_parameters(copy), list(cases)
            self._dtype = _comparable_precision(self._model, self._cases)
        self.guessed = False
        """True if an assumption was made after a failure; then the example is compared in float64 as well."""
        self.covered: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()

    def run(self, plan: Plan, spared: Collection[str] = ()) -> Failure | None:
        """Cut and compare, in evaluation mode on every input, and in training mode; ``spared`` groups are not cut."""
        with forbid_access_to(self._host):
            try:
                return self._run(plan, spared)
            except _UnlivelyError:  # the network does not run with other weights
                self._model = evaluation_copy(self._host)
                self._dtype = _comparable_precision(self._model, self._cases)
                return self._run(plan, spared)

    def _run(self, plan: Plan, spared: Collection[str]) -> Failure | None:
        check_stop()
        gates = trial_gates(plan)
        for group in plan.groups:
            if group.name in spared:
                gates[group.gates] = 1.0
        kept = kept_gates(plan, gates > 0, gates)
        compact, scaled = fold_and_cut(plan, self._model, gates, kept)
        wanted, failure = self._evaluate(compact, scaled)
        if failure is not None:
            return failure
        return self._train(scaled, Subject(compact, dtype=self._dtype), wanted, plan.same_in_training)

    def _evaluate(self, compact: nn.Module, scaled: Mapping[str, Tensor]) -> tuple[Accepted, Failure | None]:
        """Compare in evaluation mode, the smallest case in float64 like the certificate, the others in float32.

        Small weights may hide errors below the rounding of float32, and a single token may hide the scale of attention.
        Therefore, after an assumption the example is compared as well. Also returns the larger network's outputs.
        """
        with attributes_kept(self._model), attributes_kept(compact):
            precise, failure = self._evaluate_in_float64(compact, scaled)
        if failure is not None:
            return precise, failure
        cases = [case for case in self._cases if all(case is not other for other in precise.cases)]
        given = dict[int, Any](zip(map(id, precise.cases), precise.outputs, strict=True))
        reference = Subject(self._model, scaled, self._dtype)
        candidate = Subject(compact, dtype=self._dtype)
        try:
            wanted = Accepted(tuple(cases), tuple(reference(case.inputs) for case in cases))
        except Depl0Error:
            raise
        except Exception as error:
            raise _UnlivelyError from error
        failure = _difference(wanted, reference, candidate, NETWORKS.float32) if cases else None
        self.covered = tuple(case.what for case in self._cases)
        given.update(zip(map(id, cases), wanted.outputs, strict=True))
        return Accepted(tuple(self._cases), tuple(given[id(case)] for case in self._cases)), failure

    def _evaluate_in_float64(self, compact: nn.Module, scaled: Mapping[str, Tensor]) -> tuple[Accepted, Failure | None]:
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
        return wanted, _difference(wanted, precise, _in_float64(compact, {}), NETWORKS.float64)

    def _train(
        self,
        scaled: Mapping[str, Tensor],
        candidate: Subject,
        evaluated: Accepted,
        same_in_training: bool,
    ) -> Failure | None:
        reference = Subject(self._model, scaled, self._dtype)
        result = compare_in_training(reference, candidate, evaluated, same_in_training)
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
    buffers = {name: cast(buffer.detach(), torch.float64) for name, buffer in model.named_buffers()}
    return Subject(model, {**buffers, **tensors}, torch.float64)


def _difference(wanted: Accepted, reference: Subject, candidate: Subject, allowed: float) -> Failure | None:
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
    return Failure(result.case.what)


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


def _randomize_constant_parameters(model: nn.Module) -> nn.Module:
    """Change parameters that are all zeros or all ones, in place, because a head of zeros hides every error."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
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
    return model


def _comparable_precision(model: nn.Module, cases: Sequence[Case]) -> torch.dtype | None:
    """Return float32 for a network in half precision, whose rounding would hide errors, unless it requires that."""
    if not is_half_precision(model):
        return None
    try:
        for case in cases:
            Subject(model, dtype=torch.float32)(case.inputs)
    except Depl0Error:
        raise
    except Exception:
        return None
    return torch.float32
