"""The registry of all rules, and their fallbacks if they cannot prove anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, fx

from depl0.analysis.labels import Channels, Normed, Opaque, Reason, Stored, Value
from depl0.analysis.propagate import Propagation
from depl0.analysis.recording import Graph, operator_name, shape_of
from depl0.analysis.rules.operators import layer_parts

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


def weight_name(state: Propagation, node: object, ndim: int) -> str | None:
    """Return the name of a layer's weight, including one whose lengths are stored separately (weight norm)."""
    value = state.values.get(node) if isinstance(node, fx.Node) else None
    return value.name if isinstance(value, Normed) else stored_name(state, node, ndim)


def bind_weight(state: Propagation, node: fx.Node, dims: dict[int, Tensor], layer: str) -> None:
    """Bind the dimensions of a layer's weight, and those of its lengths, to labels."""
    value, ndim = state.values[node], len(shape_of(node))
    assert isinstance(value, (Stored, Normed))
    state.bind(value.name, dims, ndim, layer)
    if isinstance(value, Normed) and value.length is not None:
        state.bind(value.length, {value.dim: dims[value.dim]} if value.dim in dims else {}, ndim, layer)


def refuse_layer(state: Propagation, graph: Graph, node: fx.Node, text: str) -> Value:
    """Mark the inputs of a layer that cannot be sliced as unprunable, and its weight, even if it is from a stack."""
    reason, parts = Reason(text, graph.layer[node]), layer_parts(node)
    for source in [*node.all_input_nodes, *([] if parts is None else [parts.weight])]:
        state.note_blocking(state.values.get(source), graph.layer[node])
        state.mark_unprunable(state.values.get(source), reason)
        state.fix_stored(source, graph.layer[node])
    return Opaque(reason)


def layer_name(weight: str) -> str:
    """Return the name of a layer, from the module that owns its weight."""
    module, _, name = weight.rpartition(".")
    if name == "original1":  # of a parametrized weight
        module, name = module.removesuffix(".parametrizations.weight"), "weight"
    return module if name in {"weight", "weight_v"} and module else weight


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


def spread(node: fx.Node, value: Value) -> Value:
    """Return the same value for every output of an operator with several outputs."""
    outputs = node.meta["val"]
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
    return spread(node, value) if isinstance(node.meta.get("val"), (list, tuple, Tensor)) else None
