"""One rule per family of operators: how channel labels pass through it.

A rule returns the value of the node's output. It joins labels that must be removed together, binds the dimensions of
parameters, and freezes what it cannot prove. To teach depl0 a new operator, add its name to a family in `operators.py`
or write a new rule; `zeros.py` says, beside it, whether the operator keeps zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from depl0.analysis.labels import Reason
from depl0.analysis.operators import (
    ALONG_ONE_DIM,
    CONVOLUTIONS,
    IDENTITIES,
    LIKE,
    LITERAL_INDEXING,
    MOVES,
    NORMS_OVER_LAST,
    POOLS,
    PRODUCTS,
    REDUCTIONS,
    RESHAPES,
    TRANSPOSED,
    layer_parts,
)
from depl0.analysis.propagate import LayerUse, Propagation, positions, tensor_inputs
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.values import Channels, Derived, Opaque, Stored, Value, labels_along, varying_dims

Rule: TypeAlias = Callable[[Propagation, Graph, fx.Node], Value]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return add


# -- layers --------------------------------------------------------------------------------------------------------


def _stored_name(state: Propagation, node: object, ndim: int) -> str | None:
    """Return the name of a parameter that is used directly, without a change of shape."""
    if not isinstance(node, fx.Node):
        return None
    value = state.values.get(node)
    return value.name if isinstance(value, Stored) and len(shape_of(node)) == ndim else None


def _refuse_layer(state: Propagation, graph: Graph, node: fx.Node, text: str) -> Value:
    """Freeze the inputs of a layer that cannot be sliced."""
    reason = Reason(text, graph.layer[node])
    for source in node.all_input_nodes:
        state.freeze_value(state.values.get(source), reason)
        state.fix_stored(source, graph.layer[node])
    return Opaque(reason)


def _refuse_weights(state: Propagation, graph: Graph, node: fx.Node, channel_dim: int, text: str) -> Value:
    """Freeze the inputs of a convolution or linear layer that cannot be sliced, and report its channels."""
    place, channels = len(state.layers), shape_of(node)[channel_dim]
    state.refused.setdefault(graph.layer[node] or node.name, (place, channels, Reason(text)))
    return _refuse_layer(state, graph, node, text)


def _layer_name(weight: str) -> str:
    """Name a layer after the module that owns its weight."""
    module, _, name = weight.rpartition(".")
    return module if name == "weight" and module else weight


@_rule(*CONVOLUTIONS, *TRANSPOSED)
def _convolution(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given = arguments(node)
    x, weight, bias = given["input"], given["weight"], given["bias"]
    spatial = len(shape_of(weight)) - 2
    name = _stored_name(state, weight, spatial + 2)
    bias_name = _stored_name(state, bias, 1)
    channel_dim = len(shape_of(x)) - 1 - spatial
    if name is None or (bias is not None and bias_name is None):
        return _refuse_weights(state, graph, node, channel_dim, "the layer's weight is computed, not stored")
    if name not in state.parameters:
        return _refuse_weights(state, graph, node, channel_dim, "the layer's weight is a buffer, not a parameter")
    layer = _layer_name(name)
    transposed = operator_name(node) in TRANSPOSED or bool(given.get("transposed"))
    groups, called = int(given["groups"]), (graph.mode, graph.layer[node])
    kernel = positions(shape_of(weight)[1:], 0)
    places = positions(shape_of(x if transposed else node), channel_dim)
    out_channels, weight_shape = shape_of(node)[channel_dim], shape_of(weight)
    incoming = state.channels_at(x, channel_dim, layer)
    if groups == 1:
        out_dim, in_dim = (1, 0) if transposed else (0, 1)
        outgoing = state.labels.mint(out_channels, layer)
        state.bind(name, {out_dim: outgoing, in_dim: incoming}, spatial + 2, layer)
        state.layers.append(
            LayerUse(layer, (name, out_dim), (name, in_dim), len(outgoing), len(incoming), kernel * places, *called)
        )
    else:
        if not _is_own_weight(state, name, _ConvNd):
            return _refuse_weights(state, graph, node, channel_dim, "a grouped convolution that is no nn.Conv module")
        groups_in = incoming.reshape(groups, -1)  # (groups, inputs of a group): a group lives or dies as a whole
        for column in range(1, groups_in.shape[1]):
            state.labels.join(groups_in[:, 0], groups_in[:, column])
        outgoing = groups_in[:, 0].repeat_interleave(out_channels // groups)
        state.bind(name, {0: incoming if transposed else outgoing}, spatial + 2, layer)
        state.layers.append(
            LayerUse(layer, (name, 0), None, weight_shape[0], 1, kernel * places * weight_shape[1], *called)
        )
    if bias_name is not None:
        state.bind(bias_name, {0: outgoing}, 1, layer)
    return state.output_of(outgoing, channel_dim, layer)


@_rule("linear")
def _linear(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given = arguments(node)
    x, weight, bias = given["input"], given["weight"], given["bias"]
    name, bias_name = _stored_name(state, weight, 2), _stored_name(state, bias, 1)
    if name is None or (bias is not None and bias_name is None):
        return _refuse_weights(state, graph, node, -1, "the layer's weight is computed, not stored")
    if name not in state.parameters:
        return _refuse_weights(state, graph, node, -1, "the layer's weight is a buffer, not a parameter")
    layer, last = _layer_name(name), len(shape_of(x)) - 1
    incoming = state.channels_at(x, last, layer)
    outgoing = state.labels.mint(shape_of(node)[last], layer)
    state.bind(name, {0: outgoing, 1: incoming}, 2, layer)
    if bias_name is not None:
        state.bind(bias_name, {0: outgoing}, 1, layer)
    places, called = positions(shape_of(x), last), (graph.mode, graph.layer[node])
    state.layers.append(LayerUse(layer, (name, 0), (name, 1), len(outgoing), len(incoming), places, *called))
    return state.output_of(outgoing, last, layer)


@_rule(*PRODUCTS)
def _product(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """A product with a stored matrix is a linear layer whose weight lies the other way round."""
    given, parts = arguments(node), layer_parts(node)
    assert parts is not None
    name, bias_name = _stored_name(state, parts.weight, 2), _stored_name(state, parts.bias, 1)
    plain = (parts.bias is None or bias_name is not None) and given.get("alpha", 1) == given.get("beta", 1) == 1
    if name is None or name not in state.parameters or not plain or len(shape_of(parts.input)) < 2:
        return unknown_rule(state, graph, node)
    layer, last = _layer_name(name), len(shape_of(parts.input)) - 1
    incoming = state.channels_at(parts.input, last, layer)
    outgoing = state.labels.mint(shape_of(node)[last], layer)
    state.bind(name, {0: incoming, 1: outgoing}, 2, layer)
    if bias_name is not None:
        state.bind(bias_name, {0: outgoing}, 1, layer)
    places, called = positions(shape_of(parts.input), last), (graph.mode, graph.layer[node])
    state.layers.append(LayerUse(layer, (name, 1), (name, 0), len(outgoing), len(incoming), places, *called))
    return state.output_of(outgoing, last, layer)


@_rule("batch_norm", "instance_norm")
def _batch_norm(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, layer = arguments(node), graph.layer[node]
    x = given["input"]
    if not isinstance(state.values[x], Channels):
        incoming = state.labels.mint_frozen(shape_of(x)[1], _reason_of(state, x, layer))
    else:
        incoming = state.channels_at(x, 1, layer)
    for key in ("weight", "bias", "running_mean", "running_var"):
        if given[key] is None:
            continue
        name = _stored_name(state, given[key], 1)
        if name is None:
            return _refuse_layer(state, graph, node, "the norm's parameters are computed, not stored")
        state.bind(name, {0: incoming}, 1, layer)
    return state.output_of(incoming, 1, layer)


@_rule("group_norm")
def _group_norm(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """A norm group lives or dies as a whole; one group over all channels (a layer norm) freezes them."""
    given, layer = arguments(node), graph.layer[node]
    groups = int(given["num_groups"])
    names = [_stored_name(state, given[key], 1) for key in ("weight", "bias") if given[key] is not None]
    known = [name for name in names if name is not None]
    if groups == 1 or len(known) != 2 or not all(_is_own_weight(state, name, nn.GroupNorm) for name in known):
        return _refuse_layer(state, graph, node, "a norm over all channels")
    incoming = state.channels_at(given["input"], 1, layer)
    grouped = incoming.reshape(groups, -1)
    for column in range(1, grouped.shape[1]):
        state.labels.join(grouped[:, 0], grouped[:, column])
    for name in known:
        state.bind(name, {0: incoming}, 1, layer)
    return state.output_of(incoming, 1, layer)


def _is_own_weight(state: Propagation, name: str, kind: type[nn.Module] | Any) -> bool:
    """Tell whether a parameter belongs to a module whose `groups` attribute we know how to change."""
    return isinstance(state.modules.get(name.rpartition(".")[0]), kind)


@_rule("prelu")
def _prelu(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, layer = arguments(node), graph.layer[node]
    x, weight = given["self"], given["weight"]
    name, value = _stored_name(state, weight, 1), state.values[x]
    if name is None or (shape_of(weight)[0] > 1 and not (isinstance(value, Channels) and value.dim == 1)):
        return _refuse_layer(state, graph, node, "the slope is computed, not stored")
    if shape_of(weight)[0] > 1 and isinstance(value, Channels):
        state.bind(name, {0: value.labels}, 1, layer)
    return _same(state, x, layer)


@_rule(*NORMS_OVER_LAST)
def _norm_over_last(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given = arguments(node)
    x = given["input"]
    value, count = state.values[x], len(given["normalized_shape"])
    if isinstance(value, Channels) and value.dim < len(shape_of(x)) - count:
        for key in ("weight", "bias"):
            if isinstance(given.get(key), fx.Node):
                state.fix_stored(given[key], graph.layer[node])
        return value
    return _refuse_layer(state, graph, node, "a norm over all channels")


# -- pointwise -----------------------------------------------------------------------------------------------------


def pointwise_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Channels that meet position by position become one: residual adds, factors, activations."""
    layer, out = graph.layer[node], shape_of(node)
    operands = [n for n in tensor_inputs(node) if shape_of(n)]
    labelled = [(n, v) for n in operands if isinstance(v := state.values[n], Channels)]
    aligned = {v.dim + len(out) - len(shape_of(n)) for n, v in labelled}
    if len(aligned) != 1:
        return (
            _refuse_layer(state, graph, node, "channels of two tensors lie in different dimensions")
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
            state.labels.freeze(main, _reason_of(state, operand, layer))
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
        return Opaque(_reason_of(state, data[0], graph.layer[node]))
    return Opaque(Reason("meets a value computed from parameters", graph.layer[node]))


def _derived(state: Propagation, node: fx.Node, operands: list[fx.Node]) -> Derived | None:
    """Return a vector made of stored vectors that lie alongside each other; None if it is anything else."""
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


def _reason_of(state: Propagation, node: fx.Node, layer: str) -> Reason:
    value = state.values[node]
    return value.reason if isinstance(value, Opaque) else Reason("meets a constant", layer)


# -- operators that keep the channels where they are ---------------------------------------------------------------


def _same(state: Propagation, source: fx.Node, layer: str) -> Value:
    value = state.values[source]
    if isinstance(value, (Channels, Opaque)):
        return value
    state.fix_stored(source, layer)
    return Opaque(Reason("meets a constant", layer))


@_rule(*IDENTITIES)
def _identity(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = state.values[source]
    if isinstance(value, Stored) and state.vector_dim(source) == 0 and len(shape_of(source)) == 1:
        return value  # a cast vector is still that vector
    if isinstance(value, Derived):
        return value
    return _same(state, source, graph.layer[node])


@_rule(*LIKE)
def _like(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return _same(state, tensor_inputs(node)[0], graph.layer[node])


@_rule("native_dropout")
def _native_dropout(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    value = _same(state, tensor_inputs(node)[0], graph.layer[node])
    return [value, value] if isinstance(value, (Channels, Opaque)) else None


@_rule(*POOLS)
def _pool(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = _same(state, source, graph.layer[node])
    if isinstance(value, Channels) and value.dim >= len(shape_of(source)) - POOLS[operator_name(node)]:
        return _refuse_layer(state, graph, node, "pooling over channels")
    outputs = node.meta["val"]
    if isinstance(outputs, (list, tuple)):
        return [value for _ in outputs] if isinstance(value, (Channels, Opaque)) else None
    return value


@_rule(*REDUCTIONS)
def _reduction(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, source = arguments(node), tensor_inputs(node)[0]
    if operator_name(node) in {"max", "min"} and "other" in given:
        return pointwise_rule(state, graph, node)
    value, ndim = state.values[source], len(shape_of(source))
    if not isinstance(value, Channels):
        return _spread(node, _same(state, source, graph.layer[node]))
    dims = given.get("dim")
    reduced = (
        set(range(ndim)) if dims in (None, []) else {d % ndim for d in ([dims] if isinstance(dims, int) else dims)}
    )
    if value.dim in reduced:
        return _refuse_layer(state, graph, node, f"{operator_name(node)} over channels")
    kept = bool(given.get("keepdim"))
    dim = value.dim if kept else value.dim - sum(d < value.dim for d in reduced)
    return _spread(node, Channels(dim, value.labels))


def _spread(node: fx.Node, value: Value) -> Value:
    """Give every output of an operator with several outputs the same value."""
    outputs = node.meta["val"]
    if isinstance(outputs, (list, tuple)) and isinstance(value, (Channels, Opaque)):
        return [value for _ in outputs]
    return value


@_rule(*ALONG_ONE_DIM)
def _along_one_dim(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value = _same(state, source, graph.layer[node])
    if isinstance(value, Channels) and int(arguments(node)["dim"]) % len(shape_of(source)) == value.dim:
        return _refuse_layer(state, graph, node, f"{operator_name(node)} over channels")
    return value


# -- operators that move data: they are executed on the labels ------------------------------------------------------


def _run_on_labels(state: Propagation, graph: Graph, node: fx.Node) -> Any:
    layer = graph.layer[node]

    def labels_for(source: fx.Node) -> Any:
        return state.full_labels(source, layer) if isinstance(source.meta.get("val"), Tensor) else source.meta["val"]

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), labels_for)
    if operator_name(node) in {
        "view",
        "view_as",
        "reshape_as",
    }:  # labels are expanded, so not laid out in memory like the tensor
        return labels_for(tensor_inputs(node)[0]).reshape(shape_of(node))
    return node.target(*args, **kwargs)  # type: ignore[operator]


@_rule(*RESHAPES)
def _reshape(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    if node.meta["val"].dtype != source.meta["val"].dtype:
        return unknown_rule(state, graph, node)  # x.view(dtype) reads the same memory as other numbers
    value = state.values[source]
    if isinstance(value, Stored):
        spread = _spread_vector(state, graph, node, source)
        if spread is not None:
            return spread
        dim, vector = state.vector_dim(node), state.vector_dim(source)
        if dim is not None and vector is not None and shape_of(node)[dim] == shape_of(source)[vector]:
            if source.op == "placeholder" and len(shape_of(source)) != 1:
                state.fix_stored(source, graph.layer[node])
                return Opaque(Reason("meets a constant", graph.layer[node]))
            return value
    if isinstance(value, Derived) and _stays_vector(state, node, source):
        return value
    state.sized_by_code.append((graph, node))
    moved = _run_on_labels(state, graph, node)
    if isinstance(value, Channels):
        moved = _joined_across_parts(state, node, moved)
    return state.recover(moved, graph.layer[node])


def _stays_vector(state: Propagation, node: fx.Node, source: fx.Node) -> bool:
    dim, vector = state.vector_dim(node), state.vector_dim(source)
    return dim is not None and vector is not None and shape_of(node)[dim] == shape_of(source)[vector]


def _joined_across_parts(state: Propagation, node: fx.Node, full: Tensor) -> Tensor:
    """Split channels C into (g, C/g): channels at the same place of every part can go together.

    The size that follows the network is the one written as -1, else the last; whether the code follows it, a trial
    tells.
    """
    dims = varying_dims(full)
    if len(dims) < 2 or dims != list(range(dims[0], dims[0] + len(dims))):
        return full
    sizes = arguments(node).get("size") or arguments(node).get("shape") or arguments(node).get("sizes") or []
    wanted = list(sizes) if isinstance(sizes, (list, tuple)) else []
    free = next((dim for dim in dims if dim < len(wanted) and wanted[dim] == -1), dims[-1])
    for dim in dims:
        if dim != free:
            first = full.narrow(dim, 0, 1).expand_as(full)
            state.labels.join(first.flatten(), full.flatten())
            full = first
    return full


def _spread_vector(state: Propagation, graph: Graph, node: fx.Node, source: fx.Node) -> Channels | None:
    """Give channels to a parameter that is expanded into a map, the same at all positions: a layer without inputs."""
    value, vector, shape = state.values[source], state.vector_dim(source), shape_of(source)
    if operator_name(node) != "expand" or not isinstance(value, Stored) or vector is None or shape == shape_of(node):
        return None
    if value.name not in state.parameters or (source.op == "placeholder" and len(shape) != 1):
        return None
    labels = state.axes.get((value.name, 0))
    if labels is None:
        labels = state.labels.mint(shape[vector], _layer_name(value.name))
    state.bind(value.name, {0: labels}, 1, graph.layer[node])
    return Channels(vector + len(shape_of(node)) - len(shape), labels)


@_rule(*MOVES)
def _move(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    if isinstance(state.values[source], (Stored, Derived)) and operator_name(node) in {"squeeze", "unsqueeze"}:
        return _reshape(state, graph, node)
    moved = _run_on_labels(state, graph, node)
    if operator_name(node) == "stack" and len(varying_dims(moved)) == 2:
        dim = int(arguments(node)["dim"]) % moved.dim()
        first = moved.narrow(dim, 0, 1).expand_as(moved)
        if all(isinstance(state.values[n], Channels) for n in node.all_input_nodes):
            state.labels.join(first.flatten(), moved.flatten())  # parts side by side lose the same channels
            moved = first
    return state.recover(moved, graph.layer[node])


@_rule(*LITERAL_INDEXING)
def _literal_indexing(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Indices are numbers in the user's code: allowed only where they leave the channels as they are."""
    source = tensor_inputs(node)[0]
    before = state.values[source]
    moved = _run_on_labels(state, graph, node)
    parts = list(moved) if isinstance(moved, (list, tuple)) else [moved]
    if isinstance(before, Channels):
        state.sized_by_code.append((graph, node))
        split = _equal_parts(state, node, before, parts)
        if split is not None:
            return split
        for part in parts:
            dims = varying_dims(part)
            if len(dims) != 1 or not torch.equal(labels_along(part, dims[0]), before.labels):
                return _spread(
                    node, _refuse_layer(state, graph, node, f"{operator_name(node)} picks channels by number")
                )
    values = [state.recover(part, graph.layer[node]) for part in parts]
    return values if isinstance(moved, (list, tuple)) else values[0]


def _equal_parts(
    state: Propagation, node: fx.Node, before: Channels, parts: list[Tensor]
) -> list[Channels | Opaque] | None:
    """Tie the parts of a split into equal ones, as those of chunk; a trial tells whether their size is a number."""
    if operator_name(node) not in {"split", "split_with_sizes", "unsafe_split"} or len(parts) < 2:
        return None
    sizes = {part.shape[before.dim] for part in parts}
    if len(sizes) != 1 or sizes == {1} or sizes == {len(before.labels)}:
        return None
    rows = before.labels.reshape(len(parts), -1)
    for row in range(1, len(parts)):
        state.labels.join(rows[0], rows[row])
    return [Channels(before.dim, rows[row]) for row in range(len(parts))]


@_rule("chunk")
def _chunk(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Equal parts stay equal if channels at the same place in every part are removed together."""
    given, source = arguments(node), tensor_inputs(node)[0]
    value, dim = state.values[source], int(given["dim"]) % len(shape_of(source))
    parts = node.meta["val"]
    if not isinstance(value, Channels) or value.dim != dim:
        return _literal_indexing(state, graph, node)
    count = len(parts)
    if len(value.labels) % count or len(value.labels) == count:
        return _spread(node, _refuse_layer(state, graph, node, "chunk makes parts of unequal size"))
    rows = value.labels.reshape(count, -1)
    for row in range(1, count):
        state.labels.join(rows[0], rows[row])
    return [Channels(dim, rows[row]) for row in range(count)]


@_rule("tensor_split")
def _tensor_split(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    by_number = isinstance(node.args[1], int)
    return _chunk(state, graph, node) if by_number else _literal_indexing(state, graph, node)


@_rule("glu")
def _glu(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """One half times the sigmoid of the other: both lose the same channels."""
    source = tensor_inputs(node)[0]
    value, dim = state.values[source], int(arguments(node)["dim"]) % len(shape_of(source))
    if not isinstance(value, Channels) or value.dim != dim:
        return _same(state, source, graph.layer[node])
    halves = value.labels.reshape(2, -1)
    state.labels.join(halves[0], halves[1])
    return state.output_of(halves[0], dim, graph.layer[node])


@_rule("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, source = arguments(node), tensor_inputs(node)[0]
    value = state.values[source]
    if not isinstance(value, Channels):
        return _same(state, source, graph.layer[node])
    parts = value.labels.reshape(int(given["groups"]), -1)
    if value.dim != 1 or parts.shape[1] == 1:
        return _refuse_layer(state, graph, node, "a shuffle of channels one by one")
    for row in range(1, len(parts)):
        state.labels.join(parts[0], parts[row])
    return Channels(1, parts.t().flatten())


@_rule("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Channels that become the pixels of one channel go together."""
    source = tensor_inputs(node)[0]
    value, ndim = state.values[source], len(shape_of(source))
    if not isinstance(value, Channels) or value.dim != ndim - 3:
        return (
            _same(state, source, graph.layer[node])
            if not isinstance(value, Channels)
            else unknown_rule(state, graph, node)
        )
    wanted = shape_of(node)[ndim - 3]
    if operator_name(node) == "pixel_unshuffle":
        return Channels(value.dim, value.labels.repeat_interleave(wanted // len(value.labels)))
    parts = value.labels.reshape(wanted, -1)
    for column in range(1, parts.shape[1]):
        state.labels.join(parts[:, 0], parts[:, column])
    return state.output_of(parts[:, 0], value.dim, graph.layer[node])


@_rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
       "replication_pad2d", "replication_pad3d")  # fmt: skip
def _pad(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Padding adds a fixed number of channels at each end; the added ones can never be removed."""
    given, source = arguments(node), tensor_inputs(node)[0]
    value = state.values[source]
    if not isinstance(value, Channels):
        return _same(state, source, graph.layer[node])
    amounts, ndim = list(given["pad"] if "pad" in given else given["padding"]), len(shape_of(source))
    place = 2 * (ndim - 1 - value.dim)
    before, after = (amounts[place], amounts[place + 1]) if place + 1 < len(amounts) else (0, 0)
    if before == 0 and after == 0:
        return value
    constant = operator_name(node) == "constant_pad_nd" or given.get("mode", "") == "constant"
    if before < 0 or after < 0:
        return _refuse_layer(state, graph, node, "padding cuts channels off by number")
    if not constant:
        return _refuse_layer(state, graph, node, "channels are padded from other channels")
    state.sized_by_code.append((graph, node))
    padding = state.labels.mint_frozen(1, Reason("is added to a shortcut that is padded with zeros", graph.layer[node]))
    return Channels(value.dim, torch.cat([padding.expand(before), value.labels, padding.expand(after)]))


@_rule("getitem")
def _getitem(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source, index = node.args
    value = state.values[source]  # type: ignore[index]
    return value[index] if isinstance(value, list) else _same(state, source, graph.layer[node])  # type: ignore[index, arg-type]


# -- everything else ------------------------------------------------------------------------------------------------


@_rule("new_empty", "new_zeros", "new_ones", "new_full", "zeros", "ones", "full", "arange", "rand", "randn", "empty",
       "linspace", "eye", "scalar_tensor")  # fmt: skip
def _created(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return Opaque(Reason("meets a tensor created in forward", graph.layer[node]))


@_rule("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size", "sym_size")
def _no_data(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    return None


def value_sized_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Freeze what meets a tensor whose size depends on values."""
    value = _refuse_layer(state, graph, node, "its size depends on the values of a tensor")
    outputs = node.meta.get("val")
    if isinstance(outputs, (list, tuple)):
        return _spread(node, value)
    return value if isinstance(outputs, Tensor) else None


def unknown_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Freeze what goes into an operator that is not understood."""
    value = _refuse_layer(state, graph, node, f"operator {operator_name(node)} is not understood")
    outputs = node.meta.get("val")
    if isinstance(outputs, (list, tuple)):
        return _spread(node, value)
    return value if isinstance(outputs, Tensor) else None
