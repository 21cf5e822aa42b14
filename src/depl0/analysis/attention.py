"""Self-attention modules, looked at as a whole: every head loses the same places.

Queries and keys meet place by place, so those go together; values go with the inputs of the layer that reads them. A
closed place of a query is a zero in every score, and one of a value a zero that the last layer reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from depl0.analysis.labels import Reason
from depl0.analysis.propagate import Axis, LayerUse, Propagation, WeighedProduct
from depl0.analysis.recording import Graph, operator_name, shape_of
from depl0.analysis.rules.rulebook import layer_name
from depl0.analysis.values import Channels, Opaque
from depl0.replacements.attention import AttentionSpec
from depl0.replacements.attentions import in_windows, recognise_attention


@dataclass(frozen=True)
class AttentionCall:
    """One call of a self-attention module."""

    path: str
    source: fx.Node
    in_axis: Axis
    """what reads the input"""
    inner_axes: tuple[Axis, ...]
    """what gates of queries, keys and values multiply"""
    out_axes: tuple[Axis, ...]
    """what gates of the output multiply"""


def attentions_called(state: Propagation, graph: Graph) -> dict[fx.Node, tuple[str, list[fx.Node]]]:
    """Return, for the first node of every call of a self-attention module, its path and all its nodes."""
    calls: dict[tuple[str, str], list[fx.Node]] = {}
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if node.op != "call_function" or not stack:
            continue
        for key, (name, _) in stack.items():
            path = str(name).removeprefix("L['self']").removeprefix(".").split("@")[0]
            if path in state.modules and state.attention_of(path, recognise_attention) is not None:
                if not _gives_bias(graph, node, path):
                    calls.setdefault((str(key), path), []).append(node)
                break
    return {nodes[0]: (path, nodes) for (_, path), nodes in calls.items()}


def _gives_bias(graph: Graph, node: fx.Node, path: str) -> bool:
    """Tell whether a node belongs to layers that compute what is added to the scores: they are looked at as others."""
    return graph.layer[node].startswith(f"{path}.cpb_mlp.")


def attention_call(state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> bool:
    """Give a call of a self-attention module the values that it has; tell whether that could be done."""
    inside, module, spec = set(nodes), state.modules[path], state.attention_of(path, recognise_attention)
    given = {n for node in nodes for n in node.all_input_nodes if n not in inside and n not in graph.tensors}
    sources = {n for n in given if n.op != "placeholder" or n in graph.inputs}  # the others are constants
    biases = {n for n in sources if _gives_bias(graph, n, path)}
    sources -= biases
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    products = {"scaled_dot_product_attention", "matmul", "bmm", "baddbmm"}
    if spec is None or len(sources) != 1 or len(results) != 1 or not any(operator_name(n) in products for n in nodes):
        return False
    if not all(bias in state.values for bias in biases):  # not computed before the rest
        return False
    source, result = sources.pop(), results[0]
    last = len(shape_of(source)) - 1
    weight, out = module.get_parameter(spec.weight), module.get_parameter(f"{spec.out}.weight")
    if len(shape_of(source)) != len(shape_of(result)) or shape_of(source)[last] != weight.shape[1]:
        return False
    if shape_of(source)[:last] != shape_of(result)[:last] or shape_of(result)[last] != len(out):
        return False
    called, layers = (graph.mode, path), (state.name_of(weight), state.name_of(out))
    names, out_layer = layer_name(layers[0]), layer_name(layers[1])
    incoming = state.channels_at(source, last, names)
    rows, read = _inner_labels(state, spec, weight, out, layers, names)
    outgoing = state.labels.mint(len(out), out_layer)
    state.bind(layers[0], {0: rows, 1: incoming}, 2, names)
    state.bind(layers[1], {0: outgoing, 1: read}, 2, out_layer)
    inner, outer = [(layers[0], 0)], [(layers[1], 0)]
    for bias, labels, axes in ((spec.bias, rows, inner), (f"{spec.out}.bias", outgoing, outer)):
        parameter = _optional(module, bias)
        if parameter is not None:
            state.bind(state.name_of(parameter), {0: labels}, 1, path)
            axes.append((state.name_of(parameter), 0))
    batch, length = _batch_and_length(shape_of(source), spec, module)
    places = batch * length
    path_of = (names, out_layer) if spec.form == "timm" else (path, path)
    state.layers.append(
        LayerUse(names, (layers[0], 0), (layers[0], 1), len(rows), len(incoming), places, called[0], path_of[0])
    )
    state.layers.append(
        LayerUse(out_layer, (layers[1], 0), (layers[1], 1), len(outgoing), len(read), places, called[0], path_of[1])
    )
    if (
        graph.mode == "evaluation"
    ):  # scores and what they weigh: half of the rows of queries and keys, and of the values
        each = batch * length * length / 2
        state.products += [WeighedProduct(rows, each), WeighedProduct(read, each)]
    for added in biases:
        state.freeze_value(state.values[added], Reason("are the heads of an attention", path))
    for node in nodes:
        state.values[node] = Opaque(Reason("is inside of an attention", path))
    state.values[result] = state.output_of(outgoing, last, out_layer)
    state.attended[path] = (layers[0], layers[1])
    state.attention_calls[result] = AttentionCall(path, source, (layers[0], 1), tuple(inner), tuple(outer))
    return True


def _inner_labels(
    state: Propagation, spec: AttentionSpec, weight: Tensor, out: Tensor, names: tuple[str, str], layer: str
) -> tuple[Tensor, Tensor]:
    """Return labels for the rows of queries, keys and values, and for what the last layer reads."""
    known, read = state.axes.get((names[0], 0)), state.axes.get((names[1], 1))
    if known is not None and read is not None:  # another graph, or another call
        return known, read
    value_dim = out.shape[1] // spec.heads
    inner = (len(weight) // spec.heads - value_dim) // 2
    queries = state.labels.mint(inner, layer).repeat(spec.heads)
    values = state.labels.mint(value_dim, f"{layer}.values").repeat(spec.heads)
    return torch.cat([queries, queries, values]), values


def _optional(module: nn.Module, name: str) -> nn.Parameter | None:
    try:
        return module.get_parameter(name)
    except AttributeError:  # there is no bias
        return None


def _batch_and_length(shape: tuple[int, ...], spec: AttentionSpec, module: nn.Module) -> tuple[int, int]:
    if in_windows(spec):
        sizes = list(zip(shape[1:3], vars(module)["window_size"], strict=True))
        windows = math.prod(-(-size // window) for size, window in sizes)
        return shape[0] * windows, math.prod(window for _, window in sizes)
    if len(shape) == 2:
        return 1, shape[0]
    first = spec.form == "timm" or bool(module.batch_first)
    return (shape[0], shape[1]) if first else (shape[1], shape[0])


def attentions_of_plan(state: Propagation, axes: dict[Axis, Tensor]) -> dict[str, AttentionSpec]:
    """Return the attention modules that may lose channels."""
    found = {}
    for path, names in state.attended.items():
        spec = state.attention_of(path, recognise_attention)
        if spec is not None and any((name, dim) in axes for name in names for dim in (0, 1)):
            found[path] = spec
    return found


def has_channels(state: Propagation, call: AttentionCall) -> bool:
    """Tell whether channels come into an attention, which must then be zero there when they are closed."""
    return isinstance(state.values[call.source], Channels)
