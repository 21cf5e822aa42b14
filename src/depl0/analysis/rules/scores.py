"""Rules for products of two activations: attention scores, and their weighted sums.

Channels can be in three positions of a product. If both tensors are summed over them (queries and keys, position by
position), they are coupled, and a zero in one of the two is enough. If they are rows of the left or columns of the
right tensor (values), they are channels of the result. If they are parts of a batch (heads), both tensors lose the same
ones, and again one zero is enough: the values of a closed head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, fx

from depl0.analysis.labels import Channels, Opaque, Reason, Stored, Value
from depl0.analysis.propagate import Propagation, WeighedProduct
from depl0.analysis.recording import Graph, arguments, shape_of
from depl0.analysis.rules.layers import stored_product
from depl0.analysis.rules.operators import layer_parts
from depl0.analysis.rules.parts import follow_created
from depl0.analysis.rules.rulebook import refuse_layer, rule, unknown_rule


@dataclass(frozen=True)
class ScoreCall:
    """The tensors that must be zero in a product of activations so that its closed channels have no effect."""

    summed: tuple[fx.Node, ...]
    """Tensors that are multiplied and summed over channels, one of which must be zero there; empty without a sum."""
    factors: tuple[fx.Node, ...]
    """Tensors of which any one, if zero, makes the result's channels zero."""


@rule("mm", "matmul", "bmm")
def _product(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given = arguments(node)
    left, right = given["self"], given["mat2" if "mat2" in given else "other"]
    parts = layer_parts(node)
    if parts is not None and isinstance(state.values.get(parts.weight), Stored):
        return stored_product(state, graph, node)
    if min(len(shape_of(left)), len(shape_of(right))) < 2 or isinstance(state.values[left], Stored):
        return unknown_rule(state, graph, node)
    return _multiplied(state, graph, node, left, right)


def _multiplied(state: Propagation, graph: Graph, node: fx.Node, left: fx.Node, right: fx.Node) -> Value:
    out, layer = len(shape_of(node)), graph.layer[node]
    found = _Places(state, node, layer)
    found.add(left, rows=out - 2, columns=None)
    found.add(right, rows=None, columns=out - 1)
    return found.result(graph, math.prod(shape_of(node)) * shape_of(left)[-1])


class _Places:
    """The channel dimensions of the two tensors of a product, relative to its result."""

    def __init__(self, state: Propagation, node: fx.Node, layer: str) -> None:
        self._state, self._node, self._layer = state, node, layer
        self._operands: list[fx.Node] = []
        self._summed: list[tuple[fx.Node, Tensor]] = []
        self._kept: list[tuple[fx.Node, int, Tensor]] = []
        """(tensor, dimension of the result, labels)."""

    def add(self, operand: fx.Node, rows: int | None, columns: int | None) -> None:
        """Record the channel dimension of a tensor: rows or columns are kept, the other dimension is summed."""
        self._operands.append(operand)
        value, ndim, out = self._state.values[operand], len(shape_of(operand)), len(shape_of(self._node))
        if not isinstance(value, Channels):
            return
        from_end = value.dim - ndim
        if (from_end == -2 and rows is not None) or (from_end == -1 and columns is not None):
            self._kept.append((operand, out + from_end, value.labels))
        elif from_end >= -2:
            self._summed.append((operand, value.labels))
        else:
            self._kept.append((operand, out + from_end, value.labels))

    def result(self, graph: Graph, macs: int) -> Value:
        """Join the coupled channels, and return the value of the result."""
        state, node, layer = self._state, self._node, self._layer
        for operand in self._operands:
            if not isinstance(state.values[operand], (Channels, Opaque)):
                state.fix_stored(operand, layer)
        if len({dim for _, dim, _ in self._kept}) + bool(self._summed) > 1 or len(self._summed) == 1:
            return refuse_layer(state, graph, node, "a product of tensors whose channels lie in different dimensions")
        if self._summed:
            (left, labels), (right, others) = self._summed
            state.labels.join(labels, others)
            state.score_calls[node] = ScoreCall((left, right), ())
            self._weigh(graph, labels, macs)
            return Opaque(Reason("a product that is summed over channels", layer))
        if not self._kept:
            return Opaque(_why(state, self._operands, layer))
        _, dim, labels = self._kept[0]
        for _, _, others in self._kept[1:]:
            state.labels.join(labels, others)
        self._mark_constants(labels, dim)
        state.score_calls[node] = ScoreCall((), tuple(operand for operand, _, _ in self._kept))
        self._weigh(graph, labels, macs)
        return Channels(dim, labels)

    def _mark_constants(self, labels: Tensor, dim: int) -> None:
        """Mark heads as unprunable if they are multiplied with a tensor whose heads are not channels."""
        out, keeps = len(shape_of(self._node)), {operand for operand, _, _ in self._kept}
        for operand in self._operands:
            own = dim - out + len(shape_of(operand))
            if dim < out - 2 and operand not in keeps and own >= 0 and shape_of(operand)[own] > 1:
                self._state.labels.mark_unprunable(labels, _why(self._state, [operand], self._layer))

    def _weigh(self, graph: Graph, labels: Tensor, macs: int) -> None:
        if graph.mode == "evaluation":
            self._state.products.append(WeighedProduct(labels, macs / len(labels)))


def _why(state: Propagation, operands: list[fx.Node], layer: str) -> Reason:
    reasons = [value.reason for n in operands if isinstance(value := state.values[n], Opaque)]
    return reasons[0] if reasons else Reason("meets a constant", layer)


@rule("scaled_dot_product_attention")
def _attention(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle two products with a softmax in between; the default scale is one over the root of the channels."""
    given, layer = arguments(node), graph.layer[node]
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    values = {n: state.values[n] for n in (query, key, value) if isinstance(state.values[n], Channels)}
    dims = {n: v.dim - len(shape_of(n)) for n, v in values.items() if isinstance(v, Channels)}
    for operand in (query, key, value, *([mask] if isinstance(mask, fx.Node) else [])):
        if not isinstance(state.values[operand], (Channels, Opaque)):
            state.fix_stored(operand, layer)
    if -2 in dims.values():  # the positions of queries and keys
        return refuse_layer(state, graph, node, "attention over channels")
    if all(dim == -1 for dim in dims.values()):
        return _attention_within_heads(state, graph, node)
    if len(set(dims.values())) != 1 or len(dims) != 3:
        return refuse_layer(state, graph, node, "a product of tensors whose channels lie in different dimensions")
    return _attention_of_heads(state, graph, node, dims[query])


def _attention_within_heads(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, layer = arguments(node), graph.layer[node]
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    queries, keys, values = (state.values[n] for n in (query, key, value))
    if isinstance(mask, fx.Node):
        state.mark_unprunable(state.values[mask], Reason("are a mask of attention", layer))
    scores = math.prod(shape_of(node)[:-1]) * shape_of(key)[-2]  # one weight for each pair of positions and head
    summed: tuple[fx.Node, ...] = ()
    scaled = given.get("scale") is not None
    if isinstance(queries, Channels) and isinstance(keys, Channels) and scaled:
        state.labels.join(queries.labels, keys.labels)
        summed = (query, key)
        if graph.mode == "evaluation":
            state.products.append(WeighedProduct(queries.labels, float(scores)))
    else:
        for each in (queries, keys):
            text = "meets a constant" if scaled else "the scale of attention is computed from them"
            state.mark_unprunable(each, Reason(text, layer))
    if not isinstance(values, Channels):
        state.score_calls[node] = ScoreCall(summed, ())
        return Opaque(_why(state, [value], layer))
    state.score_calls[node] = ScoreCall(summed, (value,))
    if graph.mode == "evaluation":
        state.products.append(WeighedProduct(values.labels, float(scores)))
    return state.output_of(values.labels, len(shape_of(node)) - 1, layer)


def _attention_of_heads(state: Propagation, graph: Graph, node: fx.Node, from_end: int) -> Value:
    """Couple heads with their keys and values, which several of them may share (``enable_gqa``)."""
    given, layer = arguments(node), graph.layer[node]
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    values = state.values[query], state.values[key], state.values[value]
    labels, *others = (v.labels for v in values if isinstance(v, Channels))
    for other in others:
        if len(labels) % len(other) or (len(labels) != len(other) and not given.get("enable_gqa")):
            return refuse_layer(state, graph, node, "a product of tensors whose channels lie in different dimensions")
        state.labels.join(labels, other.repeat_interleave(len(labels) // len(other)))
    if isinstance(mask, fx.Node):
        own, known = len(shape_of(mask)) + from_end, state.values[mask]
        if isinstance(known, Channels) and known.dim == own:
            state.labels.join(labels, known.labels)
        else:
            state.mark_unprunable(known, Reason("are a mask of attention", layer))
            if not follow_created(state, graph, mask, from_end, labels):
                state.labels.mark_unprunable(labels, _why(state, [mask], layer))
    state.score_calls[node] = ScoreCall((), (value,))
    if graph.mode == "evaluation":
        pairs = math.prod(shape_of(node)[:-1]) * shape_of(key)[-2]
        macs = pairs * (shape_of(query)[-1] + shape_of(value)[-1])
        state.products.append(WeighedProduct(labels, macs / len(labels)))
    return state.output_of(labels, len(shape_of(node)) + from_end, layer)
