"""A smaller host that continues to train: channels of removed gates are cut out, all others are unchanged.

Unlike extraction this folds no gates, because the other gates are still random. A gate keeps its index in the flat
vector, so the generator and the consumers of its vector are independent of the host's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from depl0._util.random import isolated_random
from depl0._util.tensors import as_precise_as_possible, cast
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.equivalence.cases import similar_cases
from depl0.equivalence.certificate import Certificate, precision_name, unrounded_tensors
from depl0.equivalence.comparison import NETWORKS, Subject, compare
from depl0.errors import CertificateError
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import private_copy
from depl0.host.inputs import ExampleInputs
from depl0.host.network import canonical_names, evaluation_mode
from depl0.surgery.record import record_cut, state_shapes
from depl0.surgery.slicing import cut_to, kept_positions, sliced


@dataclass(frozen=True)
class Moved:
    """A parameter or buffer of the former host and its successor in the smaller host."""

    before: Tensor
    after: Tensor
    kept: Mapping[int, Tensor]
    """Dimension -> the kept positions; dimensions that keep all positions may be missing."""

    def cut(self, tensor: Tensor) -> Tensor:
        """Cut another tensor of the same shape (momentum, a running mean) in the same way."""
        return sliced(tensor, self.kept)


@dataclass(frozen=True)
class Shrunk:
    """A smaller host, its plan, and the successor of every tensor of the former host."""

    plan: Plan
    """The axes of the smaller host, with the gate indices of the original one."""
    host: nn.Module
    moved: tuple[Moved, ...]
    positions: Mapping[Axis, Tensor]
    """The kept positions of the former host, for every axis that has lost some."""


def shrink(plan: Plan, host: nn.Module, kept: Tensor) -> Shrunk:
    """Build a host that only has the channels of these gates, and return it with its positions in the former host."""
    positions = kept_positions(plan, kept)
    smaller = private_copy(host)
    cut_to(smaller, positions, plan.replacements)
    return Shrunk(_shrunk_plan(plan, positions), smaller, _moved(host, smaller, positions), positions)


def shrunk_between(plan: Plan, host: nn.Module, smaller_plan: Plan, smaller: nn.Module) -> Shrunk:
    """Return the mapping from a host to one that :func:`shrink` made from it, in one step or several."""
    positions = kept_positions(plan, remaining_gates(smaller_plan))
    return Shrunk(smaller_plan, smaller, _moved(host, smaller, positions), positions)


def _moved(host: nn.Module, smaller: nn.Module, positions: Mapping[Axis, Tensor]) -> tuple[Moved, ...]:
    kept: dict[str, dict[int, Tensor]] = {}
    for (name, dim), keep in positions.items():
        kept.setdefault(name, {})[dim] = keep
    canonical, after = canonical_names(host), _tensors(smaller)
    return tuple(Moved(tensor, after[name], kept.get(canonical[name], {})) for name, tensor in _tensors(host).items())


def remaining_gates(plan: Plan) -> Tensor:
    """Return a mask of the gates whose channels the host of a plan has."""
    numbers = torch.cat([gates[gates >= 0] for gates in plan.axes.values()])
    return torch.zeros(plan.num_gates, dtype=torch.bool).index_fill(0, numbers, True)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _shrunk_plan(plan: Plan, positions: Mapping[Axis, Tensor]) -> Plan:
    axes = {axis: gates[positions[axis]] if axis in positions else gates for axis, gates in plan.axes.items()}

    def size(axis: Axis | None, before: int) -> int:
        return len(axes[axis]) if axis in axes else before

    uses = [
        replace(use, out_size=size(use.out_axis, use.out_size), in_size=size(use.in_axis, use.in_size))
        for use in plan.uses
    ]
    return replace(plan, axes=axes, uses=tuple(uses))


def certify_shrunk(
    before: tuple[Plan, nn.Module],
    shrunk: Shrunk,
    gates: Tensor,
    example: ExampleInputs,
    costs: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    """Verify that both hosts compute the same outputs with these gates, and record the cut in the smaller one.

    ``costs`` are parameters and MACs of the original model and of the smaller host. Both hosts are compared on the
    example and a random input. They are not copied, so that training is interrupted only briefly.
    """
    plan, host = before
    exact = unrounded_tensors(host, scaled_parameters(plan, host, gates), shrunk.positions, plan)
    on_device = example.on_device_of(host)
    with torch.no_grad(), isolated_random(), evaluation_mode(host, shrunk.host):
        wanted, dtype = as_precise_as_possible(
            lambda dtype: similar_cases(_gated(plan, host, gates, dtype), on_device, 1, plan.index_limits),
            plan.works_in_float32,
        )
        candidate = _gated(shrunk.plan, shrunk.host, gates, dtype).before_rounding(exact)
        result = compare(wanted, candidate, NETWORKS.at(dtype, host))
    if not result.agrees:
        raise CertificateError(
            f"the smaller network differs from the one before by {result.error:.2g} (allowed {result.allowed:g}). "
            "Nothing is replaced.",
            hint="cut nothing before the search ends (cut='never'), and report the network.",
        ) from result.failure
    certificate = Certificate(result.error, precision_name(dtype, host), len(wanted.cases))
    record_cut(host, shrunk.host, shrunk.plan, shrunk.positions, certificate, example, costs)


def _gated(plan: Plan, host: nn.Module, gates: Tensor, dtype: torch.dtype | None) -> Subject:
    """Return a host with gates in the given precision, without a copy."""
    tensors = {**_tensors(host), **scaled_parameters(plan, host, gates)}
    return Subject(host, {name: cast(tensor, dtype) for name, tensor in tensors.items()}, dtype)


def carry_over(optimizer: torch.optim.Optimizer, shrunk: Shrunk) -> None:
    """Replace an optimizer's parameters by those of the smaller host, in place, and cut its state accordingly.

    Works for any optimizer whose state has, for each parameter, tensors of the parameter's shape (momentum, Adam's
    moments) and anything else (step counts), which is kept. Other parameters are unchanged.
    """
    moved = {id(entry.before): entry for entry in shrunk.moved}
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            entry = moved.get(id(parameter))
            if entry is None:
                continue
            group["params"][place] = entry.after
            remembered = optimizer.state.pop(parameter, None)
            if remembered is not None:
                optimizer.state[entry.after] = {
                    key: entry.cut(value) if isinstance(value, Tensor) and value.shape == parameter.shape else value
                    for key, value in remembered.items()
                }


def carry_over_copy(model: nn.Module, former: nn.Module, shrunk: Shrunk) -> bool:
    """Cut a copy of the former host, anywhere inside a module (a running mean of the weights), in place.

    Returns True if there was one. A copy is a module of the host's class whose tensors have the former host's shapes.
    """
    shapes = state_shapes(former)
    for module in model.modules():
        if type(module) is type(former) and module is not former and state_shapes(module) == shapes:
            cut_to(module, shrunk.positions, shrunk.plan.replacements)
            return True
    return False
