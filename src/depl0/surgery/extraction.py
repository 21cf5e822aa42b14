"""From a gated model to a smaller network that computes the same outputs: at the end, or while it trains.

:func:`extract` folds the gates into a copy of the host and removes the closed channels. :func:`shrink` removes channels
while the network trains, and folds nothing, because the other gates are still random. A gate keeps its index in the
flat vector, so the generator and the consumers of its vector are independent of the host's size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.random import isolated_random
from depl0._util.tensors import as_precise_as_possible, cast
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.costs.count import Cost, cost
from depl0.equivalence.cases import similar_cases
from depl0.equivalence.certificate import Certificate, certify, precision_name
from depl0.equivalence.comparison import NETWORKS, Subject, compare
from depl0.errors import CertificateError, InputError
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import isolated_deepcopy, lazy_copy, own_memory
from depl0.host.inputs import ExampleInputs
from depl0.host.network import canonical_names, evaluation_mode
from depl0.replacements.constant import removable, remove, workable
from depl0.surgery.record import record_cut, state_shapes
from depl0.surgery.slicing import cut_to, kept_gates, kept_positions, sliced


def fold_and_cut(plan: Plan, host: nn.Module, gates: Tensor, kept: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
    """Fold gates into a copy of the host and slice it. Return the copy and the gated parameters it was made from."""
    scaled = scaled_parameters(plan, host, gates)
    compact = isolated_deepcopy(host)
    for name, parameter in compact.named_parameters():
        if name in scaled:
            parameter.data = lazy_copy(scaled[name])
    cut_to(compact, kept_positions(plan, kept), plan.replacements)
    return compact, scaled


def extract(
    plan: Plan,
    host: nn.Module,
    gates: Tensor,
    score: Tensor,
    example: ExampleInputs,
    costs: tuple[Cost, Cost],
    remove_blocks: bool = False,
) -> nn.Module:
    """Return a plain module of the host's class without the closed channels.

    ``gates`` are the deterministic gates; ``score`` decides which channel is kept if all gates of a group are closed.
    ``costs`` are those of the original model and of this one; the latter is counted again if layers are removed.
    """
    gates, score = gates.detach().cpu(), score.detach().cpu()
    kept = kept_gates(plan, gates > 0, score)
    compact, scaled = fold_and_cut(plan, host, gates, kept)
    positions = kept_positions(plan, kept)
    example = example.on_device_of(host)
    with isolated_random():
        removals = workable(compact, removable(plan, host, gates > 0), example) if remove_blocks else []
        certificate = certify(host, scaled, compact, removals, example, plan)
    if removals:
        remove(compact, removals)
        costs = costs[0], cost(compact, example)
    own_memory(compact)
    record_cut(host, compact, plan, positions, certificate, example, *costs, removals)
    return compact


# -- a smaller host that goes on training ------------------------------------------------------------------------------


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
    smaller = isolated_deepcopy(host)
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
    dense: Cost,
    left: Cost,
) -> None:
    """Verify that both hosts compute the same outputs with these gates, and record the cut in the smaller one.

    ``dense`` and ``left`` are the costs of the original model and of the smaller host. Both hosts are compared on the
    example and a random input. They are not copied, so that training is interrupted only briefly.
    """
    plan, host = before
    on_device = example.on_device_of(host)
    with torch.no_grad(), isolated_random(), evaluation_mode(host, shrunk.host):
        wanted, dtype = as_precise_as_possible(
            lambda dtype: similar_cases(_gated(plan, host, gates, dtype), on_device, 1, plan.index_limits)
        )
        result = compare(wanted, _gated(shrunk.plan, shrunk.host, gates, dtype), NETWORKS.at(dtype, host))
    if not result.agrees:
        raise CertificateError(
            f"the smaller network differs from the one before by {result.error:.2g} (allowed {result.allowed:g}). "
            "Nothing is replaced.",
            hint="cut nothing before the search ends (cut='never'), and report the network.",
        ) from result.failure
    certificate = Certificate(result.error, precision_name(dtype, host), len(wanted.cases))
    record_cut(host, shrunk.host, shrunk.plan, shrunk.positions, certificate, example, dense, left)


def _gated(plan: Plan, host: nn.Module, gates: Tensor, dtype: torch.dtype | None) -> Subject:
    """Return a host with gates in the given precision, without a copy."""
    buffers = {name: cast(buffer, dtype) for name, buffer in host.named_buffers()}
    return Subject(host, {**buffers, **scaled_parameters(plan, host, gates)}, dtype)


# -- objects that hold the former host's tensors -----------------------------------------------------------------------


def carry_over(optimizer: Any, shrunk: Shrunk) -> None:
    """Replace an optimizer's parameters by those of the smaller host, in place, and cut its state accordingly.

    Works for any optimizer whose state has, for each parameter, tensors of the parameter's shape (momentum, Adam's
    moments) and anything else (step counts), which is kept. Optimizers inside the optimizer are updated as well, such
    as the one that SAM wraps. Other parameters are unchanged.

    Raises:
        InputError: the optimizer keeps parameters or state where they cannot be replaced; nothing is changed.
    """
    moved = {id(entry.before): entry for entry in shrunk.moved}
    check_can_be_carried(optimizer, [e.before for e in shrunk.moved], [e.after for e in shrunk.moved])
    for own in _walked(optimizer)[0]:
        for group in own.param_groups:
            group["params"][:] = [moved[id(p)].after if id(p) in moved else p for p in group["params"]]
        for parameter in [p for p in own.state if id(p) in moved]:
            entry = moved[id(parameter)]
            own.state[entry.after] = {
                key: entry.cut(value) if isinstance(value, Tensor) and value.shape == parameter.shape else value
                for key, value in own.state.pop(parameter).items()
            }


def check_can_be_carried(optimizer: Any, weights: Sequence[Tensor], successors: Sequence[Tensor] = ()) -> None:
    """Raise an error if an optimizer holds these weights, or their state, where :func:`carry_over` cannot replace them.

    An optimizer may keep lists of its parameters beside its groups, as ZeroRedundancyOptimizer does, or state that does
    not have the parameters' shapes. A loaded state may already have the shapes of the successors.
    """
    former = {id(old): (old.shape, new.shape) for old, new in zip(weights, successors or weights, strict=True)}
    optimizers, elsewhere = _walked(optimizer)
    for path, tensor in elsewhere:
        if id(tensor) in former:
            raise InputError(
                f"{path} holds a weight of the network outside the optimizer's parameter groups: after a cut the "
                "optimizer would still use the former weight.",
                hint="pass an optimizer without this wrapper; or cut='never', which cuts only in finish().",
            )
    for own in optimizers:
        for parameter, remembered in own.state.items():
            allowed = former.get(id(parameter))
            shapes = {key: v.shape for key, v in remembered.items() if isinstance(v, Tensor) and v.numel() > 1}
            odd = next((key for key, shape in shapes.items() if allowed and shape not in allowed), None)
            if odd is not None:
                raise InputError(
                    f"{type(own).__name__} keeps {odd!r} of shape {tuple(shapes[odd])} for a weight of shape "
                    f"{tuple(parameter.shape)}, which cannot be cut along with it.",
                    hint="choose an optimizer whose state has the weights' shapes; or cut='never', which cuts only in "
                    "finish().",
                )


def _walked(optimizer: Any) -> tuple[list[Any], list[tuple[str, Tensor]]]:
    """Return an optimizer with all optimizers inside it, and the tensors that they hold outside groups and state.

    Attributes and containers are searched.
    """
    optimizers: list[Any] = []
    elsewhere: list[tuple[str, Tensor]] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [(type(optimizer).__name__, optimizer)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Tensor):
            elsewhere.append((path, value))
        elif id(value) in seen:
            continue
        elif value is optimizer or isinstance(value, torch.optim.Optimizer):
            optimizers.append(value)
            seen.update(map(id, (value.param_groups, value.state, *value.param_groups)))
            stack += [(f"{path}.{name}", part) for name, part in vars(value).items()]
        elif isinstance(value, Mapping):
            stack += [(path, part) for part in (*value.keys(), *value.values())]
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack += [(path, part) for part in value]
        seen.add(id(value))
    return optimizers, elsewhere


def carry_gradients(shrunk: Shrunk) -> None:
    """Cut the gradients that were accumulated on the former host's parameters."""
    for entry in shrunk.moved:
        if isinstance(entry.before, nn.Parameter) and entry.before.grad is not None:
            entry.after.grad = entry.cut(entry.before.grad)


_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip


def carry_hooks(host: nn.Module, smaller: nn.Module) -> None:
    """Make the module hooks of a smaller host be removed by the handles that were returned for the former one.

    A handle refers to the dictionary that holds its hook, so the smaller host gets the same dictionaries. Hooks that
    are bound to an object outside the host stay bound to it; others are bound to the copy in the smaller host.
    """
    values = [value for module in host.modules() for value in (module, *vars(module).values())]
    inside = {id(value) for value in values if hasattr(value, "__dict__")}  # not None, numbers and strings
    modules = dict(smaller.named_modules())
    for name, module in host.named_modules():
        for attribute in _HOOKS:
            hooks, copies = getattr(module, attribute), getattr(modules.get(name), attribute, {})
            if not hooks or hooks.keys() != copies.keys():
                continue
            bound = {n: copies[n] for n, hook in hooks.items() if any(id(o) in inside for o in _bound_to(hook))}
            if bound:
                setattr(module, attribute, hooks.copy())
                hooks.update(bound)
            setattr(modules[name], attribute, hooks)


def _bound_to(hook: Any) -> Iterable[Any]:
    """Return the objects that a hook was made with: the hook itself, the object of a method, arguments of a partial."""
    if isinstance(hook, functools.partial):
        return (*_bound_to(hook.func), *hook.args, *hook.keywords.values())
    return (hook, getattr(hook, "__self__", None))


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
