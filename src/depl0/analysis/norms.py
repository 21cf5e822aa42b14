"""Norms over all channels: a module that is one is looked at as a whole, not operator by operator.

Its channels can go where they are zeros when they come in: the compact network then has a norm in its place that goes
on counting them (:mod:`depl0.replacements.norm`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from depl0.analysis.labels import Reason
from depl0.analysis.propagate import Axis, Propagation
from depl0.analysis.recording import Graph, arguments, is_in_place, operator_name, shape_of
from depl0.analysis.values import Channels, Opaque
from depl0.replacements.norm import NormSpec, recognise

_SIGNS = {"layer_norm", "rms_norm", "group_norm", "mean", "sum", "var", "std", "var_mean", "norm", "linalg_vector_norm"}
"""a norm has at least one of these"""


@dataclass(frozen=True)
class NormCall:
    """One call of a norm over all channels."""

    path: str
    spec: NormSpec
    source: fx.Node
    """what goes in"""
    axes: tuple[Axis, ...]
    """what to multiply by a gate so that a closed channel comes out as zero"""
    keeps_zeros: bool
    """whether a closed channel must be zero when it comes in for that"""

    @property
    def can_be_silenced(self) -> bool:
        """Return whether a closed channel can be made zero behind the norm."""
        return self.keeps_zeros or bool(self.axes)


def modules_called(graph: Graph) -> dict[fx.Node, list[fx.Node]]:
    """Return, for the first node of every module call that may be a norm, all its nodes."""
    calls: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if node.op == "call_function" and stack:
            calls.setdefault(str(list(stack)[-1]), []).append(node)
    return {nodes[0]: nodes for nodes in calls.values() if any(operator_name(node) in _SIGNS for node in nodes)}


def norm_call(state: Propagation, graph: Graph, nodes: list[fx.Node]) -> fx.Node | None:
    """Give a module call the values of a norm over all channels if it is one, and return the node of its result."""
    inside, path = set(nodes), graph.layer[nodes[0]]
    module = state.modules.get(path)
    sources = {n for node in nodes for n in node.all_input_nodes if n not in inside and n not in graph.tensors}
    aliases = {node for node in nodes if _is_source_itself(node, sources)}
    results = [node for node in nodes if node not in aliases and any(user not in inside for user in node.users)]
    results = results or nodes[-1:]  # nobody reads it
    if module is None or len(sources) != 1 or len(results) != 1 or any(is_in_place(node) for node in nodes):
        return None
    source, result = sources.pop(), results[0]
    value = state.values[source]
    if not isinstance(value, Channels) or shape_of(source) != shape_of(result):
        return None
    width = len(value.labels)
    spec = state.norms.get(path) or recognise(module, value.dim, len(shape_of(source)), width, _epsilons(nodes))
    if spec is None or spec.dim % len(shape_of(source)) != value.dim:
        return None
    bound = {name: state.name_of(module.get_parameter(name)) for name in (spec.scale, spec.shift) if name is not None}
    for name, full_name in bound.items():
        shape = tuple(module.get_parameter(name).shape)
        state.bind(full_name, {_long_dim(shape): value.labels}, len(shape), path)
    for node in nodes:
        state.values[node] = value if node in aliases else Opaque(Reason("is inside of a norm", path))
    state.values[result] = Channels(value.dim, value.labels)
    state.norms[path] = spec
    state.normed.setdefault(path, []).append(value.labels)
    affine = [name for name in (spec.scale, spec.shift) if name is not None]
    if spec.kind in {"rms", "response"}:  # zero times anything is zero: there is but the shift to silence
        affine = [name for name in affine if name == spec.shift]
    elif spec.scale is None:
        affine = []
    axes = tuple((bound[name], _long_dim(tuple(module.get_parameter(name).shape))) for name in affine)
    state.norm_calls[result] = NormCall(path, spec, source, axes, spec.kind in {"rms", "response"})
    return result


def _is_source_itself(node: fx.Node, sources: set[fx.Node]) -> bool:
    """Tell whether a node is a cast that changed nothing: the recorder takes it for the tensor, outside as well."""
    source = node.args[0] if node.args else None
    if operator_name(node) != "to" or source not in sources or not isinstance(source, fx.Node):
        return False
    return bool(node.meta["val"].dtype == source.meta["val"].dtype)


def _long_dim(shape: tuple[int, ...]) -> int:
    return next((dim for dim, size in enumerate(shape) if size > 1), 0)


def _epsilons(nodes: list[fx.Node]) -> list[float | None]:
    """Return the small numbers in a module's code, one of which is what keeps it from dividing by zero."""
    found: list[float | None] = []
    for node in nodes:
        if operator_name(node) == "rms_norm" or operator_name(node) in {"layer_norm", "group_norm"}:
            found.append(arguments(node)["eps"])
        else:
            found += [leaf for leaf in pytree.tree_leaves((node.args, dict(node.kwargs))) if isinstance(leaf, float)]
    return [eps for eps in found if eps is None or 0 < eps < 0.1]


def freeze_unsilenced(state: Propagation, call: NormCall) -> None:
    """Freeze the channels of a norm that cannot be made zero when they come in."""
    value = state.values[call.source]
    if isinstance(value, Channels):
        state.labels.freeze(value.labels, Reason("a norm over channels that cannot be made zero", call.path))


def norms_of_plan(state: Propagation, gated: set[int]) -> dict[str, NormSpec]:
    """Return the norms that may lose channels."""

    def loses(labels: list[Tensor]) -> bool:
        return any(bool(gated.intersection(state.labels.roots(torch.as_tensor(part)).tolist())) for part in labels)

    return {path: spec for path, spec in state.norms.items() if loses(state.normed[path])}
