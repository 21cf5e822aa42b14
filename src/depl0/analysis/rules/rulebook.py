"""The registry of all rules, their fallbacks if they cannot prove anything, and the rules for pointwise operators.

A rule returns the value of the node's output. It joins labels that must be removed together, binds the dimensions of
parameters, and marks channels as unprunable if it cannot prove that they are prunable. To support a new operator, add
its name to a family in `operators.py` or write a new rule; whether it keeps zeros is defined in `gate_sites.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, fx

from depl0.analysis.labels import Channels, Derived, Opaque, Reason, Stored, Value
from depl0.analysis.propagate import Propagation, tensor_inputs
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.operators import ALONG_ONE_DIM, IDENTITIES, LIKE, POOLS, REDUCTIONS, is_weight, layer_parts

Rule: TypeAlias = Callable[[Propagation, Graph, fx.Node], Value]
RULES: dict[str, Rule] = {}
COMPUTED_WEIGHT = "the layer's weight is computed, not stored"


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operators of these names."""

    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


def stored_name(state: Propagation, node: object, ndim: int) -> str | None:
    """Return the name of a parameter that is used directly, without a change of shape."""
    if not isinstance(node, fx.Node):
        return None
    value = state.values.get(node)
    return value.name if isinstance(value, Stored) and len(shape_of(node)) == ndim else None


def refuse_layer(state: Propagation, graph: Graph, node: fx.Node, text: str) -> Value:
    """Mark the inputs of a layer that cannot be sliced as unprunable, and its weight, even if it is from a stack."""
    reason, parts = Reason(text, graph.layer[node]), layer_parts(node)
    for source in [*node.all_input_nodes, *([] if parts is None else [parts.weight])]:
        state.note_blocking(state.values.get(source), graph.layer[node])
        state.mark_unprunable(state.values.get(source), reason)
        state.fix_stored(source, graph.layer[node])
    return broadcast_to_outputs(node, Opaque(reason))


def layer_name(weight: str) -> str:
    """Return the name of a layer, from the module that owns its weight."""
    module, _, name = weight.rpartition(".")
    return module if name == "weight" and module else weight


def reason_of(state: Propagation, node: fx.Node, layer: str) -> Reason:
    """Return the reason why a tensor without channels makes those it is combined with unprunable."""
    value = state.values[node]
    return value.reason if isinstance(value, Opaque) else Reason("meets a constant", layer)


def same(state: Propagation, source: fx.Node, layer: str) -> Value:
    """Return the value of a tensor for an operator that does not move its channels."""
    value = state.values[source]
    if isinstance(value, (Channels, Opaque)):
        return value
    state.fix_stored(source, layer)
    return Opaque(Reason("meets a constant", layer))


def broadcast_to_outputs(node: fx.Node, value: Value) -> Value:
    """Return the same value for every output of an operator with several outputs."""
    outputs = node.meta.get("val")
    if isinstance(outputs, (list, tuple)) and isinstance(value, (Channels, Opaque)):
        return [value for _ in outputs]
    return value


def value_sized_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Mark channels as unprunable if they are combined with a tensor whose size depends on values."""
    return _refused(state, graph, node, "its size depends on the values of a tensor")


def unknown_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Mark the inputs of an unsupported operator as unprunable."""
    name = operator_name(node)
    text = "reaches a loss" if "_loss" in name else f"operator {name} is not understood"
    if name.endswith("_cell"):
        text = "a recurrent cell that forward calls step by step"
    return _refused(state, graph, node, text)


def _refused(state: Propagation, graph: Graph, node: fx.Node, text: str) -> Value:
    value = refuse_layer(state, graph, node, text)
    return value if isinstance(node.meta.get("val"), (list, tuple, Tensor)) else None


# -- pointwise -----------------------------------------------------------------------------------------------------


def pointwise_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Join channels that are combined position by position: residual adds, factors, activations."""
    layer, out = graph.layer[node], shape_of(node)
    operands = [n for n in tensor_inputs(node) if shape_of(n)]
    labelled = [(n, v) for n in operands if isinstance(v := state.values[n], Channels)]
    aligned = {v.dim + len(out) - len(shape_of(n)) for n, v in labelled}
    if len(aligned) != 1:
        return (
            refuse_layer(state, graph, node, "channels of two tensors lie in different dimensions")
            if aligned
            else (_pointwise_without_channels(state, graph, node, operands))
        )
    dim = aligned.pop()
    main = labelled[0][1].labels
    for _, other in labelled[1:]:
        state.labels.join(main, other.labels)
    if len(labelled) > 1 and operator_name(node) in {"add", "sub"}:
        state.added_to_shortcut.append(main)
    for operand in operands:
        value, shape = state.values[operand], shape_of(operand)
        own_dim = dim - (len(out) - len(shape))
        spans = own_dim >= 0 and shape[own_dim] == out[dim]
        if isinstance(value, Stored):
            _bind_operand(state, operand, value, {own_dim: main} if spans else {}, layer)
        elif isinstance(value, Derived):
            in_place = spans and state.vector_dim(operand) == own_dim
            for name, stored_dim, ndim in value.axes:
                state.bind(name, {stored_dim: main} if in_place else {}, ndim, layer)
        elif not isinstance(value, Channels) and spans:
            state.labels.mark_unprunable(main, reason_of(state, operand, layer))
    return Channels(dim, main)


def _bind_operand(state: Propagation, node: fx.Node, value: Stored, dims: dict[int, Tensor], layer: str) -> None:
    vector = state.vector_dim(node)
    if node.op != "placeholder":  # a vector that was reshaped or cast: its only long dimension is its own dimension 0
        state.bind(value.name, {0: dims[vector]} if vector in dims else {}, 1, layer)
    else:
        state.bind(value.name, dims, len(shape_of(node)), layer)


def _pointwise_without_channels(state: Propagation, graph: Graph, node: fx.Node, operands: list[fx.Node]) -> Value:
    derived = _derived(state, node, operands)
    if derived is not None:
        return derived
    for operand in operands:
        state.fix_stored(operand, graph.layer[node])
    data = [n for n in operands if isinstance(state.values[n], Opaque)]
    if data:
        return Opaque(reason_of(state, data[0], graph.layer[node]))
    return Opaque(Reason("meets a value computed from parameters", graph.layer[node]))


def _derived(state: Propagation, node: fx.Node, operands: list[fx.Node]) -> Derived | None:
    """Return a vector made of aligned stored vectors; None if it is anything else."""
    axes: dict[tuple[str, int, int], None] = {}
    long = state.vector_dim(node)
    for operand in operands:
        value, vector = state.values[operand], state.vector_dim(operand)
        if vector is None or long is None or vector + len(shape_of(node)) - len(shape_of(operand)) != long:
            return None
        if isinstance(value, Derived):
            axes.update(dict.fromkeys(value.axes))
        elif isinstance(value, Stored) and operand.op == "placeholder":
            axes[value.name, vector, len(shape_of(operand))] = None
        elif isinstance(value, Stored):  # reshaped or cast: it was a vector
            axes[value.name, 0, 1] = None
        else:
            return None
    return Derived(tuple(axes)) if axes else None


# -- operators that do not move channels ----------------------------------------------------------------------------


@rule(*IDENTITIES)
def _identity(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = state.values[source]
    if is_weight(node):
        return Opaque(Reason("a stored matrix", graph.layer[node]))
    if isinstance(value, Stored) and state.vector_dim(source) == 0 and len(shape_of(source)) == 1:
        return value  # a cast vector is still that vector
    if isinstance(value, Derived):
        return value
    return same(state, source, graph.layer[node])


@rule(*LIKE)
def _like(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return same(state, tensor_inputs(node)[0], graph.layer[node])


@rule("native_dropout")
def _native_dropout(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    value = same(state, tensor_inputs(node)[0], graph.layer[node])
    return [value, value] if isinstance(value, (Channels, Opaque)) else None


@rule(*POOLS)
def _pool(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = same(state, source, graph.layer[node])
    if isinstance(value, Channels) and value.dim >= len(shape_of(source)) - POOLS[operator_name(node)]:
        return refuse_layer(state, graph, node, "pooling over channels")
    outputs = node.meta["val"]
    if isinstance(outputs, (list, tuple)):
        return [value for _ in outputs] if isinstance(value, (Channels, Opaque)) else None
    return value


@rule(*REDUCTIONS)
def _reduction(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, source = arguments(node), tensor_inputs(node)[0]
    if operator_name(node) in {"max", "min"} and "other" in given:
        return pointwise_rule(state, graph, node)
    value, ndim = state.values[source], len(shape_of(source))
    if not isinstance(value, Channels):
        return broadcast_to_outputs(node, same(state, source, graph.layer[node]))
    dims = given.get("dim")
    reduced = (
        set(range(ndim)) if dims in (None, []) else {d % ndim for d in ([dims] if isinstance(dims, int) else dims)}
    )
    if value.dim in reduced:
        return refuse_layer(state, graph, node, f"{operator_name(node)} over channels")
    kept = bool(given.get("keepdim"))
    dim = value.dim if kept else value.dim - sum(d < value.dim for d in reduced)
    return broadcast_to_outputs(node, Channels(dim, value.labels))


@rule(*ALONG_ONE_DIM)
def _along_one_dim(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = same(state, source, graph.layer[node])
    if isinstance(value, Channels) and int(arguments(node)["dim"]) % len(shape_of(source)) == value.dim:
        return refuse_layer(state, graph, node, f"{operator_name(node)} over channels")
    return value


# -- everything else ------------------------------------------------------------------------------------------------


@rule("new_empty", "new_zeros", "new_ones", "new_full", "zeros", "ones", "full", "arange", "rand", "randn", "empty",
       "linspace", "eye", "scalar_tensor")  # fmt: skip
def _created(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return Opaque(Reason("meets a tensor created in forward", graph.layer[node]))


@rule("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size", "sym_size")
def _no_data(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return None
