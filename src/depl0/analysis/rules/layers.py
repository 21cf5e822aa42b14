"""Rules for layers: convolutions, linear and recurrent layers, products with stored matrices, norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from depl0.analysis.labels import Channels, Opaque, Reason, Value
from depl0.analysis.propagate import LayerUse, Propagation, positions
from depl0.analysis.recording import Graph, arguments, has_known_size, operator_name, shape_of
from depl0.analysis.rules.operators import (
    CONVOLUTIONS,
    NORMS_OVER_LAST,
    RECURRENT,
    TRANSPOSED,
    LayerParts,
    is_transposed,
    layer_parts,
    loses_places,
)
from depl0.analysis.rules.rulebook import (
    COMPUTED_WEIGHT,
    broadcast_to_outputs,
    layer_name,
    reason_of,
    refuse_layer,
    rule,
    same,
    stored_name,
    unknown_rule,
)

# -- layers --------------------------------------------------------------------------------------------------------


def _refuse_weights(state: Propagation, graph: Graph, node: fx.Node, channel_dim: int, text: str) -> Value:
    """Report the channels of a convolution or linear layer that cannot be sliced; its inputs become unprunable."""
    place, channels = len(state.layers), shape_of(node)[channel_dim]
    state.refused.setdefault(graph.layer[node] or node.name, (place, channels, Reason(text)))
    return refuse_layer(state, graph, node, text)


def _dense_layer(
    state: Propagation, graph: Graph, node: fx.Node, parts: LayerParts, dims: tuple[int, int], macs_per_pair: int
) -> Value:
    """Bind a layer in which every output depends on every input; ``dims`` are the input and output channel dims."""
    ndim = len(shape_of(parts.weight))
    name = stored_name(state, parts.weight, ndim)
    assert name is not None and parts.in_dim is not None
    layer, bias_name = layer_name(name), stored_name(state, parts.bias, 1)
    incoming = state.channels_at(parts.input, dims[0], layer)
    outgoing = state.labels.mint(shape_of(node)[dims[1]], layer)
    state.bind(name, {parts.out_dim: outgoing, parts.in_dim: incoming}, ndim, layer)
    if bias_name is not None:
        state.bind(bias_name, {0: outgoing}, 1, layer)
    axes, sizes = ((name, parts.out_dim), (name, parts.in_dim)), (len(outgoing), len(incoming))
    state.layers.append(LayerUse(layer, *axes, *sizes, macs_per_pair, graph.mode, graph.layer[node]))
    return state.output_of(outgoing, dims[1], layer)


def _refused_weight(state: Propagation, graph: Graph, node: fx.Node, parts: LayerParts, channel_dim: int) -> Value:
    """Handle a convolution or linear layer whose weight or bias is not a stored parameter; return None for others."""
    name = stored_name(state, parts.weight, len(shape_of(parts.weight)))
    if name is None or (parts.bias is not None and stored_name(state, parts.bias, 1) is None):
        return _refuse_weights(state, graph, node, channel_dim, COMPUTED_WEIGHT)
    if name not in state.parameters:
        return _refuse_weights(state, graph, node, channel_dim, "the layer's weight is a buffer, not a parameter")
    return None


@rule(*CONVOLUTIONS, *TRANSPOSED)
def _convolution(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, parts = arguments(node), layer_parts(node)
    assert parts is not None
    shape, transposed, groups = shape_of(parts.weight), is_transposed(node), int(given["groups"])
    channel_dim = len(shape_of(parts.input)) + 1 - len(shape)
    refused = _refused_weight(state, graph, node, parts, channel_dim)
    if refused is not None:
        return refused
    macs = positions(shape[1:], 0) * positions(shape_of(parts.input if transposed else node), channel_dim)
    if groups == 1:
        return _dense_layer(state, graph, node, parts, (channel_dim, channel_dim), macs)
    name, bias_name = str(stored_name(state, parts.weight, len(shape))), stored_name(state, parts.bias, 1)
    if not _is_own_weight(state, name, _ConvNd):
        return _refuse_weights(state, graph, node, channel_dim, "a grouped convolution that is no nn.Conv module")
    layer, called, out_channels = layer_name(name), (graph.mode, graph.layer[node]), shape_of(node)[channel_dim]
    incoming = state.channels_at(parts.input, channel_dim, layer)
    groups_in = incoming.reshape(groups, -1)  # (groups, inputs of a group)
    if loses_places(node):
        state.labels.join_rows(groups_in)
        outgoing = state.labels.mint(out_channels // groups, layer).repeat(groups)
        state.bind(name, {0: outgoing, 1: groups_in[0]}, len(shape), layer)
        use = LayerUse(layer, (name, 0), (name, 1), out_channels, groups_in.shape[1], macs, *called, groups)
    else:
        state.labels.join_rows(groups_in.t())
        outgoing = groups_in[:, 0].repeat_interleave(out_channels // groups)
        state.bind(name, {0: incoming if transposed else outgoing}, len(shape), layer)
        use = LayerUse(layer, (name, 0), None, shape[0], 1, macs * shape[1], *called)
    state.layers.append(use)
    if bias_name is not None:
        state.bind(bias_name, {0: outgoing}, 1, layer)
    return state.output_of(outgoing, channel_dim, layer)


@rule("linear")
def _linear(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    parts = layer_parts(node)
    assert parts is not None
    refused = _refused_weight(state, graph, node, parts, -1)
    if refused is not None:
        return refused
    last = len(shape_of(parts.input)) - 1
    return _dense_layer(state, graph, node, parts, (last, last), positions(shape_of(parts.input), last))


@rule("addmm")  # mm and matmul may have two activations: see rules/scores.py
def stored_product(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle a product with a stored matrix as a linear layer with a transposed weight."""
    given, parts = arguments(node), layer_parts(node)
    assert parts is not None
    name, bias_name = stored_name(state, parts.weight, len(shape_of(parts.weight))), stored_name(state, parts.bias, 1)
    plain = (parts.bias is None or bias_name is not None) and given.get("alpha", 1) == given.get("beta", 1) == 1
    if name is None or name not in state.parameters or not plain or len(shape_of(parts.input)) < 2:
        return unknown_rule(state, graph, node)
    dims = len(shape_of(parts.input)) + parts.place, len(shape_of(node)) + parts.place
    return _dense_layer(state, graph, node, parts, dims, positions(shape_of(node), dims[1]))


@rule("_grouped_mm", "grouped_mm", "grouped_mm_fallback")
def _grouped_product(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle products with a stack of weights. The operator supports neither float64 nor most widths."""
    text = "a grouped product runs at few widths; transformers: model.set_experts_implementation('batched_mm')"
    return refuse_layer(state, graph, node, text)


@rule("batch_norm", "instance_norm")
def _batch_norm(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, layer = arguments(node), graph.layer[node]
    x = given["input"]
    if not isinstance(state.values[x], Channels):
        incoming = state.labels.mint_unprunable(shape_of(x)[1], reason_of(state, x, layer))
    else:
        incoming = state.channels_at(x, 1, layer)
    module, vectors = state.modules.get(layer), ("weight", "bias", "running_mean", "running_var")
    if isinstance(module, _NormBase) and all(given[key] is None for key in vectors):
        state.axes.setdefault((f"{layer}.num_features", 0), incoming)  # torch warns if the number differs
    for key in vectors:
        if given[key] is None:
            continue
        name = stored_name(state, given[key], 1)
        if name is None:
            return refuse_layer(state, graph, node, "the norm's parameters are computed, not stored")
        state.bind(name, {0: incoming}, 1, layer)
    return state.output_of(incoming, 1, layer)


@rule("group_norm")
def _group_norm(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Couple all channels of a norm group; with one group over all channels (a layer norm) they are unprunable."""
    given, layer = arguments(node), graph.layer[node]
    groups = int(given["num_groups"])
    names = [stored_name(state, given[key], 1) for key in ("weight", "bias") if given[key] is not None]
    known = [name for name in names if name is not None]
    if groups == 1 or len(known) != 2 or not all(_is_own_weight(state, name, nn.GroupNorm) for name in known):
        return refuse_layer(state, graph, node, "a norm over all channels")
    incoming = state.channels_at(given["input"], 1, layer)
    state.labels.join_rows(incoming.reshape(groups, -1).t())
    for name in known:
        state.bind(name, {0: incoming}, 1, layer)
    return state.output_of(incoming, 1, layer)


def _is_own_weight(state: Propagation, name: str, kind: type[nn.Module] | Any) -> bool:
    """Return True if a parameter belongs to a module whose `groups` attribute can be updated."""
    return isinstance(state.modules.get(layer_name(name)) or state.modules.get(name.rpartition(".")[0]), kind)


@rule("prelu")
def _prelu(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given, layer = arguments(node), graph.layer[node]
    x, weight = given["self"], given["weight"]
    name, value = stored_name(state, weight, 1), state.values[x]
    if name is None or (shape_of(weight)[0] > 1 and not (isinstance(value, Channels) and value.dim == 1)):
        return refuse_layer(state, graph, node, "the slope is computed, not stored")
    if shape_of(weight)[0] > 1 and isinstance(value, Channels):
        state.bind(name, {0: value.labels}, 1, layer)
    return same(state, x, layer)


@rule(*NORMS_OVER_LAST)
def _norm_over_last(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    given = arguments(node)
    x = given["input"]
    value, count = state.values[x], len(given["normalized_shape"])
    if isinstance(value, Channels) and value.dim < len(shape_of(x)) - count:
        for key in ("weight", "bias"):
            if isinstance(given.get(key), fx.Node):
                state.fix_stored(given[key], graph.layer[node])
        return value
    return refuse_layer(state, graph, node, "a norm over all channels")


@rule(*RECURRENT)
def _recurrent(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Handle the input like that of a linear layer, and couple hidden units of all layers and directions.

    A unit is an input of the units of the next step, of the next layer, and of the following layers. Gates multiply the
    weights of these inputs, so that a closed unit may have any value.
    """
    calls = recurrent_calls(state, node)
    if not calls:
        return refuse_layer(state, graph, node, "a recurrent layer over channels")
    given, layer = arguments(node), graph.layer[node]
    x, module = given["input"], state.modules[calls[0].inputs.rpartition(".")[0]]
    assert isinstance(module, nn.RNNBase)
    last, steps = len(shape_of(x)) - 1, positions(shape_of(x), len(shape_of(x)) - 1)
    incoming, directions = state.channels_at(x, last, layer), 2 if module.bidirectional else 1
    units = state.labels.mint(module.hidden_size, layer) if units_removable(state, node) else None
    reason = Reason("the state of a recurrent layer", layer)
    for place, call in enumerate(calls):
        rows = (
            state.labels.mint_unprunable(shape_of(call.nodes[0])[0], reason)
            if units is None
            else units.repeat(call.gates)
        )
        read = incoming if place < directions else None if units is None else units.repeat(directions)
        for name, columns in ((call.inputs, read), (call.hidden, units)):
            if columns is None:
                continue
            state.bind(name, {0: rows, 1: columns}, 2, layer)
            use = LayerUse(name, (name, 0), (name, 1), len(rows), len(columns), steps, graph.mode, layer)
            state.layers.append(use)
        for name in call.biases if units is not None else ():
            state.bind(name, {0: rows}, 1, layer)
    if units is None:
        for source in node.all_input_nodes:
            if source is not x and source not in [call.nodes[0] for call in calls[:directions]]:
                state.mark_unprunable(state.values.get(source), reason)
                state.fix_stored(source, layer)
        return broadcast_to_outputs(node, Opaque(reason))
    output = state.output_of(units.repeat(directions), last, layer)
    ends = state.output_of(units, last, layer)  # (layers, batch, units), or without the batch
    values = (output, *[ends] * (len(node.meta["val"]) - 1))
    return [value for value in values if isinstance(value, (Channels, Opaque))]


@dataclass(frozen=True)
class RecurrentCall:
    """The weights of one layer and direction of an LSTM, GRU or RNN."""

    inputs: str
    hidden: str
    biases: tuple[str, ...]
    nodes: tuple[fx.Node, ...]

    @property
    def gates(self) -> int:
        """Return the number of rows of the weights that belong to one unit."""
        rows, units = shape_of(self.nodes[1])
        return rows // units


def recurrent_calls(state: Propagation, node: fx.Node) -> list[RecurrentCall]:
    """Return the parts of a recurrent layer, in order; none if its weights do not belong to a torch module."""
    given = arguments(node)
    params, x = given.get("params"), given.get("input")
    if not isinstance(params, (list, tuple)) or not isinstance(x, fx.Node) or not has_known_size(x):
        return []
    names = [stored_name(state, each, len(shape_of(each))) for each in params]
    owners = {str(name).rpartition(".")[0] for name in names}
    owned = len(owners) == 1 and isinstance(state.modules.get(owners.pop()), nn.RNNBase)
    if not owned or not set(names) <= state.parameters:
        return []
    each = len(params) // (int(given["num_layers"]) * (2 if given["bidirectional"] else 1))
    return [
        RecurrentCall(str(i), str(h), tuple(map(str, others)), tuple(params[place : place + each]))
        for place in range(0, len(params), each)
        for i, h, *others in [names[place : place + each]]
    ]


def units_removable(state: Propagation, node: fx.Node) -> bool:
    """Return True if hidden units can be removed: outputs are not projected, and no initial state is passed.

    An initial state has a separate size, which would not follow a cut of the layer.
    """
    first = arguments(node)["hx"]
    starts = first if isinstance(first, (list, tuple)) else [first]
    zeros = all(isinstance(start, fx.Node) and operator_name(start) in _ZEROS for start in starts)
    modules = {state.modules.get(call.inputs.rpartition(".")[0]) for call in recurrent_calls(state, node)}
    return zeros and not any(isinstance(module, nn.RNNBase) and module.proj_size for module in modules)


_ZEROS = {"zeros", "zeros_like", "new_zeros"}
