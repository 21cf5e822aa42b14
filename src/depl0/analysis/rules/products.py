"""Rules for products that are layers in disguise: einsum with a stored weight, and recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from depl0.analysis.labels import Reason
from depl0.analysis.propagate import LayerUse, Propagation, positions
from depl0.analysis.recording import Graph, arguments, has_known_size, operator_name, shape_of
from depl0.analysis.rules.einsum import product_of
from depl0.analysis.rules.operators import RECURRENT
from depl0.analysis.rules.rulebook import layer_name, refuse_layer, rule, spread, stored_name, unknown_rule
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
    """Read the input like a linear layer, and let hidden units go, of all layers and directions together.

    A unit is read by the units of the next step, by the next layer, and by what follows. Gates go on the weights that
    read it: then a closed unit may have any value.
    """
    calls = recurrent_calls(state, node)
    if not calls:
        return spread(node, refuse_layer(state, graph, node, "a recurrent layer over channels"))
    given, layer = arguments(node), graph.layer[node]
    x, module = given["input"], state.modules[calls[0].inputs.rpartition(".")[0]]
    assert isinstance(module, nn.RNNBase)
    last, steps = len(shape_of(x)) - 1, positions(shape_of(x), len(shape_of(x)) - 1)
    incoming, directions = state.channels_at(x, last, layer), 2 if module.bidirectional else 1
    units = state.labels.mint(module.hidden_size, layer) if units_can_go(state, node) else None
    reason = Reason("the state of a recurrent layer", layer)
    for place, call in enumerate(calls):
        rows = (
            state.labels.mint_frozen(shape_of(call.nodes[0])[0], reason) if units is None else units.repeat(call.gates)
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
                state.freeze_value(state.values.get(source), reason)
                state.fix_stored(source, layer)
        return spread(node, Opaque(reason))
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
        """Return how many rows of the weights belong to one unit."""
        rows, units = shape_of(self.nodes[1])
        return rows // units


def recurrent_calls(state: Propagation, node: fx.Node) -> list[RecurrentCall]:
    """Return the parts of a recurrent layer, in order; none where its weights are not those of a module of torch."""
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


def units_can_go(state: Propagation, node: fx.Node) -> bool:
    """Tell whether hidden units can be removed: not where outputs are projected, or the first state is given.

    That state has a size of its own, which no layer would follow.
    """
    first = arguments(node)["hx"]
    starts = first if isinstance(first, (list, tuple)) else [first]
    zeros = all(isinstance(start, fx.Node) and operator_name(start) in _ZEROS for start in starts)
    modules = {state.modules.get(call.inputs.rpartition(".")[0]) for call in recurrent_calls(state, node)}
    return zeros and not any(isinstance(module, nn.RNNBase) and module.proj_size for module in modules)


_ZEROS = {"zeros", "zeros_like", "new_zeros"}
