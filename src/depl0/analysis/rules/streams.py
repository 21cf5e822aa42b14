"""Rules for what writes into a residual stream of tokens: embeddings, and parameters that are tokens themselves."""

from __future__ import annotations

from torch import fx

from depl0.analysis.propagate import Axis, Propagation
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.moves import move_rule
from depl0.analysis.rules.operators import CONCATENATIONS
from depl0.analysis.rules.rulebook import layer_name, rule, stored_name, unknown_rule
from depl0.analysis.values import Channels, Stored, Value


@rule("embedding")
def _embedding(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """An embedding is a linear layer that picks its only input: its rows stay, its columns are channels."""
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
    """Tokens side by side share their channels; parameters may be among them."""
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
    """Return which axis of each parameter that goes into a node lies along its channels, and its number of dimensions.

    None if something else than channels and such parameters goes into it.
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


def silencing_axes(state: Propagation, node: fx.Node) -> list[Axis]:
    """Return the axes of parameters that a node adds to channels or sets beside them."""
    if operator_name(node) not in CONCATENATIONS | {"add", "sub"}:
        return []
    return [axis for axis, _ in (stored_axes(state, node) or {}).values()]
