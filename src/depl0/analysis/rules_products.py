"""Rules for products that are layers in disguise: einsum with a stored weight, and the inputs of recurrent layers."""

from __future__ import annotations

from torch import fx, nn

from depl0.analysis.einsum import product_of
from depl0.analysis.labels import Reason
from depl0.analysis.operators import RECURRENT
from depl0.analysis.propagate import LayerUse, Propagation, positions
from depl0.analysis.recording import Graph, arguments, shape_of
from depl0.analysis.rulebook import layer_name, refuse_layer, rule, spread, stored_name, unknown_rule
from depl0.analysis.values import Channels, Opaque, Value


@rule("einsum")
def _einsum(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """A product with a stored weight, summed over one dimension, is a linear layer."""
    product = product_of(node)
    name = None if product is None else stored_name(state, product.weight, len(shape_of(product.weight)))
    if product is None or name is None or name not in state.parameters:
        return unknown_rule(state, graph, node)
    layer, shape = layer_name(name), shape_of(product.weight)
    incoming = state.channels_at(product.input, product.input_dim, layer)
    outgoing = state.labels.mint(shape[product.weight_out], layer)
    state.bind(name, {product.weight_in: incoming, product.weight_out: outgoing}, len(shape), layer)
    state.layers.append(
        LayerUse(
            layer,
            (name, product.weight_out),
            (name, product.weight_in),
            len(outgoing),
            len(incoming),
            product.macs_per_pair,
            graph.mode,
            graph.layer[node],
        )
    )
    return state.output_of(outgoing, product.output_dim, layer)


@rule(*RECURRENT)
def _recurrent(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """The first layer of an LSTM or GRU reads its input like a linear layer; its own state is left alone."""
    given, layer = arguments(node), graph.layer[node]
    x, weights = given["input"], input_weights(node)
    names = [stored_name(state, weight, 2) for weight in weights]
    known = [name for name in names if name is not None and name in state.parameters]
    owned = [n for n in known if isinstance(state.modules.get(n.rpartition(".")[0]), nn.RNNBase)]
    value = state.values.get(x) if isinstance(x, fx.Node) else None
    last = len(shape_of(x)) - 1 if isinstance(x, fx.Node) else -1
    if not isinstance(value, Channels) or value.dim != last or not owned or len(owned) != len(weights):
        return spread(node, refuse_layer(state, graph, node, "a recurrent layer over channels"))
    reason = Reason("the state of a recurrent layer", layer)
    result = spread(node, _without_input(state, graph, node, x, weights, reason))
    for name, weight in zip(owned, weights, strict=True):
        outgoing = state.labels.mint_frozen(shape_of(weight)[0], reason)
        state.bind(name, {0: outgoing, 1: value.labels}, 2, layer)
        state.layers.append(
            LayerUse(
                layer_name(name),
                (name, 0),
                (name, 1),
                len(outgoing),
                len(value.labels),
                positions(shape_of(x), last),
                graph.mode,
                layer,
            )
        )
    return result


def input_weights(node: fx.Node) -> list[fx.Node]:
    """Return the weights that read the input of a recurrent layer: one, or two where it runs both ways."""
    given = arguments(node)
    params = given.get("params")
    if not isinstance(params, (list, tuple)) or not params:
        return []
    directions = 2 if given.get("bidirectional") else 1
    per_direction = len(params) // (directions * int(given["num_layers"]))
    return [params[direction * per_direction] for direction in range(directions)]


def _without_input(
    state: Propagation, graph: Graph, node: fx.Node, x: fx.Node, weights: list[fx.Node], reason: Reason
) -> Value:
    """Freeze everything that goes in, the input and the weights that read it excepted."""
    for source in node.all_input_nodes:
        if source is not x and source not in weights:
            state.freeze_value(state.values.get(source), reason)
            state.fix_stored(source, graph.layer[node])
    return Opaque(reason)
