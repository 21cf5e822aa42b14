"""Rules for operators that move data, which are executed on the labels, and for embeddings and learned tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from depl0.analysis.labels import Channels, Derived, Opaque, Reason, Stored, Value, labels_along, varying_dims
from depl0.analysis.propagate import Axis, Propagation, tensor_inputs
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.operators import (
    CONCATENATIONS,
    LITERAL_INDEXING,
    MOVES,
    PARTS,
    RESHAPES,
    is_weight,
)
from depl0.analysis.rules.rulebook import (
    layer_name,
    refuse_layer,
    rule,
    same,
    stored_name,
    unknown_rule,
)

# -- operators that move data: executed on the labels ---------------------------------------------------------------


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


@rule(*RESHAPES)
def _reshape(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    if node.meta["val"].dtype != source.meta["val"].dtype:
        return unknown_rule(state, graph, node)  # x.view(dtype) reinterprets the same memory as other numbers
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
    state.literal_size_nodes.append((graph, node))
    moved = _run_on_labels(state, graph, node)
    if isinstance(value, Channels):
        moved = _joined_across_parts(state, node, moved)
    return state.recover(moved, graph.layer[node])


def _stays_vector(state: Propagation, node: fx.Node, source: fx.Node) -> bool:
    dim, vector = state.vector_dim(node), state.vector_dim(source)
    return dim is not None and vector is not None and shape_of(node)[dim] == shape_of(source)[vector]


def _joined_across_parts(state: Propagation, node: fx.Node, full: Tensor) -> Tensor:
    """Split channels C into (g, C/g): channels at the same position of every part can be removed together.

    The size that adapts to the network is the one written as -1, else the last one. A trial decides whether the code
    adapts.
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
    """Return channels for a parameter that is expanded into a map, equal at all positions: a layer without inputs."""
    value, vector, shape = state.values[source], state.vector_dim(source), shape_of(source)
    if operator_name(node) not in {"expand", "repeat"} or not isinstance(value, Stored) or vector is None:
        return None
    whole = source.op == "placeholder" and len(shape) != 1  # for example a token of shape (1, 1, C)
    dim = vector + len(shape_of(node)) - len(shape)
    if value.name not in state.parameters or shape_of(node)[dim] != shape[vector]:
        return None
    if shape == shape_of(node) and not whole:
        return None
    axis, ndim = (vector, len(shape)) if whole else (0, 1)
    labels = state.axes.get((value.name, axis))
    if labels is None:
        labels = state.labels.mint(shape[vector], layer_name(value.name))
    state.bind(value.name, {axis: labels}, ndim, graph.layer[node])
    return Channels(dim, labels)


@rule(*(MOVES - CONCATENATIONS))
def move_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Apply a move to the labels."""
    source = tensor_inputs(node)[0]
    if isinstance(state.values[source], (Stored, Derived)) and operator_name(node) in {"squeeze", "unsqueeze"}:
        return _reshape(state, graph, node)
    if is_weight(node):
        return Opaque(Reason("a stored matrix", graph.layer[node]))
    moved = _run_on_labels(state, graph, node)
    if not any(isinstance(state.values.get(n), Channels) for n in node.all_input_nodes):
        return Opaque(state.labels.reason(int(moved.reshape(-1)[0])) or Reason("meets a constant", graph.layer[node]))
    if operator_name(node) == "stack" and len(varying_dims(moved)) == 2:
        dim = int(arguments(node)["dim"]) % moved.dim()
        first = moved.narrow(dim, 0, 1).expand_as(moved)
        if all(isinstance(state.values[n], Channels) for n in node.all_input_nodes):
            state.labels.join(first.flatten(), moved.flatten())  # concatenated parts lose the same channels
            moved = first
    return state.recover(moved, graph.layer[node])


@rule("index", "index_select")
def _index(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle an index into another dimension than that of the channels, which does not change the channels."""
    if is_weight(node):
        return Opaque(Reason("a stored matrix", graph.layer[node]))
    given, (source, *others) = arguments(node), node.all_input_nodes
    value = state.values[source]
    for other in others:
        state.mark_unprunable(state.values[other], Reason("are numbers of places", graph.layer[node]))
    if not isinstance(value, Channels):
        return same(state, source, graph.layer[node])
    indices = given["indices"] if "indices" in given else [None] * int(given["dim"]) + [given["index"]]
    by_mask = any(index.meta["val"].dtype == torch.bool for index in others)
    if by_mask or (value.dim < len(indices) and indices[value.dim] is not None):
        return refuse_layer(state, graph, node, f"{operator_name(node)} picks channels by number")
    first = [None if index is None else torch.zeros(shape_of(index), dtype=torch.long) for index in indices]
    return state.recover(torch.ops.aten.index(value.full(shape_of(source)), first), graph.layer[node])


@rule(*(LITERAL_INDEXING - PARTS))
def literal_indexing_rule(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle indices that are literals in the user's code: supported only if they do not change the channels."""
    if is_weight(node):
        return Opaque(Reason("a stored matrix", graph.layer[node]))
    source = tensor_inputs(node)[0]
    before = state.values[source]
    moved = _run_on_labels(state, graph, node)
    parts = list(moved) if isinstance(moved, (list, tuple)) else [moved]
    if isinstance(before, Channels):
        state.literal_size_nodes.append((graph, node))
        for part in parts:
            dims = varying_dims(part)
            if len(dims) != 1 or not torch.equal(labels_along(part, dims[0]), before.labels):
                return refuse_layer(state, graph, node, f"{operator_name(node)} picks channels by number")
    values = [state.recover(part, graph.layer[node]) for part in parts]
    return values if isinstance(moved, (list, tuple)) else values[0]


@rule("glu")
def _glu(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Couple the two halves of a gated linear unit: one half is multiplied by the sigmoid of the other."""
    source = tensor_inputs(node)[0]
    value, dim = state.values[source], int(arguments(node)["dim"]) % len(shape_of(source))
    if not isinstance(value, Channels) or value.dim != dim:
        return same(state, source, graph.layer[node])
    halves = value.labels.reshape(2, -1)
    state.labels.join_rows(halves)
    return state.output_of(halves[0], dim, graph.layer[node])


@rule("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, source = arguments(node), tensor_inputs(node)[0]
    value = state.values[source]
    if not isinstance(value, Channels):
        return same(state, source, graph.layer[node])
    parts = value.labels.reshape(int(given["groups"]), -1)
    if value.dim != 1 or parts.shape[1] == 1:
        return refuse_layer(state, graph, node, "a shuffle of channels one by one")
    state.labels.join_rows(parts)
    return Channels(1, parts.t().flatten())


@rule("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Couple the channels that become the pixels of one channel."""
    source = tensor_inputs(node)[0]
    value, ndim = state.values[source], len(shape_of(source))
    if not isinstance(value, Channels) or value.dim != ndim - 3:
        return (
            same(state, source, graph.layer[node])
            if not isinstance(value, Channels)
            else unknown_rule(state, graph, node)
        )
    wanted = shape_of(node)[ndim - 3]
    if operator_name(node) == "pixel_unshuffle":
        return Channels(value.dim, value.labels.repeat_interleave(wanted // len(value.labels)))
    parts = value.labels.reshape(wanted, -1)
    state.labels.join_rows(parts.t())
    return state.output_of(parts[:, 0], value.dim, graph.layer[node])


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
       "replication_pad2d", "replication_pad3d")  # fmt: skip
def _pad(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Add a fixed number of channels at each end, which can never be removed."""
    given, source = arguments(node), tensor_inputs(node)[0]
    value = state.values[source]
    if not isinstance(value, Channels):
        return same(state, source, graph.layer[node])
    amounts, ndim = list(given["pad"] if "pad" in given else given["padding"]), len(shape_of(source))
    place = 2 * (ndim - 1 - value.dim)
    before, after = (amounts[place], amounts[place + 1]) if place + 1 < len(amounts) else (0, 0)
    if before == 0 and after == 0:
        return value
    constant = operator_name(node) == "constant_pad_nd" or given.get("mode", "") == "constant"
    if before < 0 or after < 0:
        return refuse_layer(state, graph, node, "padding cuts channels off by number")
    if not constant:
        return refuse_layer(state, graph, node, "channels are padded from other channels")
    state.literal_size_nodes.append((graph, node))
    padding = state.labels.mint_unprunable(
        1, Reason("is added to a shortcut that is padded with zeros", graph.layer[node])
    )
    return Channels(value.dim, torch.cat([padding.expand(before), value.labels, padding.expand(after)]))


@rule("getitem")
def _getitem(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source, index = node.args
    value = state.values[source]  # type: ignore[index]
    return value[index] if isinstance(value, list) else same(state, source, graph.layer[node])  # type: ignore[index, arg-type]


# -- streams of tokens: embeddings, and parameters that are tokens ----------------------------------------------------


@rule("embedding")
def _embedding(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle an embedding as a linear layer that selects its only input: rows are kept, columns are channels."""
    name = stored_name(state, arguments(node)["weight"], 2)
    if name is None or name not in state.parameters:
        return unknown_rule(state, graph, node)
    last = len(shape_of(node)) - 1
    labels = state.axes.get((name, 1))
    if labels is None:
        labels = state.labels.mint(shape_of(node)[last], layer_name(name))
    state.bind(name, {1: labels}, 2, graph.layer[node])
    return state.output_of(labels, last, graph.layer[node])


@rule(*CONCATENATIONS)
def _concatenation(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Couple the channels of concatenated tokens, which may include parameters."""
    values = [state.values[source] for source in node.all_input_nodes]
    channels = [value for value in values if isinstance(value, Channels)]
    along = int(arguments(node)["dim"]) % len(shape_of(node))
    dims = {value.dim for value in channels}
    stored = stored_axes(state, node)
    if dims == {along} or len(dims) != 1 or stored is None:
        return move_rule(state, graph, node)
    main = channels[0].labels
    for other in channels[1:]:
        state.labels.join(main, other.labels)
    for source in node.all_input_nodes:
        value = state.values[source]
        if isinstance(value, Stored):
            axis, ndim = stored[source]
            state.bind(axis[0], {axis[1]: main}, ndim, graph.layer[node])
    return Channels(channels[0].dim, main)


def stored_axes(state: Propagation, node: fx.Node) -> dict[fx.Node, tuple[Axis, int]] | None:
    """Return the channel axis of each parameter among a node's inputs, with the parameter's number of dimensions.

    None if a node has other inputs than channels and such parameters.
    """
    value = next((v for n in node.all_input_nodes if isinstance(v := state.values.get(n), Channels)), None)
    if value is None:
        return None
    out = len(shape_of(node))
    channel_source = next(n for n in node.all_input_nodes if state.values.get(n) is value)
    dim = value.dim + out - len(shape_of(channel_source))
    found: dict[fx.Node, tuple[Axis, int]] = {}
    for source in node.all_input_nodes:
        operand = state.values.get(source)
        if isinstance(operand, Channels):
            continue
        if not isinstance(operand, Stored) or operand.name not in state.parameters:
            return None
        shape = shape_of(source)
        own = dim - (out - len(shape))
        if own < 0 or shape[own] != len(value.labels):
            return None
        if source.op == "placeholder":
            found[source] = ((operand.name, own), len(shape))
        elif state.vector_dim(source) == own:  # a vector that was reshaped or cast
            found[source] = ((operand.name, 0), 1)
        else:
            return None
    return found


def axes_to_zero(state: Propagation, node: fx.Node) -> list[Axis]:
    """Return the axes of parameters that a node adds to channels or concatenates with them."""
    if operator_name(node) not in CONCATENATIONS | {"add", "sub"}:
        return []
    return [axis for axis, _ in (stored_axes(state, node) or {}).values()]
