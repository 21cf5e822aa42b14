"""Sites of gates: the parameters that a gate must multiply so that a closed channel is exactly zero for its consumers.

Slicing an input channel out of a convolution is exact only if that channel is zero there. From every dense consumer we
follow the graph backwards to the last affine operator (batch norm, else the convolution or linear layer itself) through
operators with f(0) = 0, and put the gate on that affine operator. If no such path exists (for example because of a
sigmoid), the gate multiplies the consumer's own input weights, which is always exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from depl0.analysis.labels import Channels, Reason, Stored
from depl0.analysis.propagate import Axis, ModuleCall, Propagation, tensor_inputs
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.layers import recurrent_calls, units_removable
from depl0.analysis.rules.moves import axes_to_zero, stored_axes
from depl0.analysis.rules.operators import (
    IDENTITIES,
    LAYERS,
    LITERAL_INDEXING,
    MOVES,
    POOLS,
    PRODUCTS,
    RECURRENT,
    RESHAPES,
    is_pointwise,
    layer_parts,
)

_AFFINE_NORMS = {"batch_norm", "instance_norm", "group_norm"}
_KEEPS_ZEROS = (
    IDENTITIES | set(POOLS) | RESHAPES | MOVES | LITERAL_INDEXING
    | {"chunk", "getitem", "mean", "sum", "amax", "amin", "prelu", "native_dropout", "zeros_like", "linalg_vector_norm",
       "glu", "channel_shuffle", "native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "tensor_split",
       "index", "index_select"}
)  # fmt: skip


def place_sites(state: Propagation, graphs: list[Graph]) -> dict[Axis, str]:
    """Return the axes that gates multiply, each with its layer, in the order of their discovery."""
    sites: dict[Axis, str] = {}
    for graph in graphs:
        _Silencer(state, graph, sites).run()
    return sites


class _Silencer:
    """Finds, for every dense consumer in one graph, the affine operators that can set its closed channels to zero."""

    def __init__(self, state: Propagation, graph: Graph, sites: dict[Axis, str]) -> None:
        self.state, self.graph, self.sites = state, graph, sites
        self.marked: set[fx.Node] = set()
        self.sources: dict[fx.Node, list[fx.Node] | None] = {}
        self.silenceable: dict[fx.Node, bool] = {}
        for node in graph.nodes:  # execution order: inputs before outputs
            found = self.sources[node] = _zero_sources(state, node, self.silenceable)
            self.silenceable[node] = found is not None and all(self.silenceable[source] for source in found)

    def run(self) -> None:
        """Place the sites of layers, of modules analysed as a whole, and of all affine operators before them."""
        for node in self.graph.nodes:
            if operator_name(node) in RECURRENT:
                self._recurrent(node)
            self._layer(node)
        for node in self.graph.nodes:
            if node in self.state.module_calls:
                self._module(self.state.module_calls[node])
            scores = self.state.score_calls.get(node)
            if scores is not None and scores.summed:
                self._one_of(scores.summed)
        for node in self.graph.nodes:
            if node in self.marked:
                for axis in _affine_axes(self.state, node):
                    self.sites.setdefault(axis, self.graph.layer[node])

    def _silence(self, start: fx.Node) -> bool:
        """Mark every affine operator on the way back from a tensor, each once; return True if that makes it zero."""
        if not self.silenceable[start]:
            return False
        stack = [start]
        while stack:
            node = stack.pop()
            if node not in self.marked:
                self.marked.add(node)
                stack.extend(self.sources[node] or [])
        return True

    def _layer(self, node: fx.Node) -> None:
        """Make a layer's inputs zero, at its own input weights if no operator before it can."""
        parts = layer_parts(node)
        if parts is None or parts.in_dim is None:
            return
        weight, value = self.state.values.get(parts.weight), self.state.values[parts.input]
        if isinstance(value, Channels) and isinstance(weight, Stored) and not self._silence(parts.input):
            self.sites.setdefault((weight.name, parts.in_dim), self.graph.layer[node])

    def _recurrent(self, node: fx.Node) -> None:
        """Make a recurrent layer's inputs zero, and its own units at the weights of their consumers."""
        calls = recurrent_calls(self.state, node)
        if not calls:
            return
        source, layer = arguments(node)["input"], self.graph.layer[node]
        directions = 2 if arguments(node)["bidirectional"] else 1
        if units_removable(self.state, node):
            for name in (*(call.hidden for call in calls), *(call.inputs for call in calls[directions:])):
                self.sites.setdefault((name, 1), layer)
        if isinstance(self.state.values.get(source), Channels) and not self._silence(source):
            for call in calls[:directions]:
                self.sites.setdefault((call.inputs, 1), layer)

    def _module(self, call: ModuleCall) -> None:
        """Make the inputs of a module that is analysed as a whole zero."""
        for axis in call.inner_axes:
            self.sites.setdefault(axis, call.path)
        given = self.state.values[call.source]
        if self._silence(call.source):
            return
        if isinstance(call.otherwise, Reason):
            self.state.mark_unprunable(given, call.otherwise)
        elif isinstance(given, Channels):
            self.sites.setdefault(call.otherwise, call.path)

    def _one_of(self, tensors: tuple[fx.Node, ...]) -> None:
        """Make one of several tensors that are multiplied and then summed over channels zero."""
        if any(self._silence(tensor) for tensor in tensors):
            return
        for tensor in tensors:
            reason = Reason("are summed over, and cannot be made zero", self.graph.layer[tensor])
            self.state.mark_unprunable(self.state.values[tensor], reason)


def _affine_axes(state: Propagation, node: fx.Node) -> list[Axis]:
    """Return the axes that a gate multiplies to set a node's output to zero; none if the node is not affine."""
    name = operator_name(node)
    if not isinstance(state.values[node], Channels):
        return []
    if node in state.module_calls:
        return list(state.module_calls[node].out_axes)
    if name in {"expand", "repeat"}:  # of a parameter, which is then the only tensor to gate
        return [_own_axis(state, n) for n in tensor_inputs(node) if isinstance(state.values[n], Stored)]
    if name == "embedding":
        weight = state.values[arguments(node)["weight"]]  # looked-up positions may be stored as well
        return [(weight.name, 1)] if isinstance(weight, Stored) else []
    parts = layer_parts(node)
    if parts is not None:
        tensors = [(parts.weight, parts.out_dim), (parts.bias, 0)]
    elif name in _AFFINE_NORMS:
        tensors = [(arguments(node)["weight"], 0), (arguments(node)["bias"], 0)]
    else:
        return axes_to_zero(state, node)
    stored = [(state.values[n], dim) for n, dim in tensors if isinstance(n, fx.Node)]
    return [(value.name, dim) for value, dim in stored if isinstance(value, Stored)]


def _own_axis(state: Propagation, node: fx.Node) -> Axis:
    """Return the long axis of a stored vector: its own if it is used unchanged, else its only one."""
    value, vector = state.values[node], state.vector_dim(node)
    assert isinstance(value, Stored) and vector is not None
    return value.name, vector if node.op == "placeholder" else 0


def _zero_sources(state: Propagation, node: fx.Node, silenceable: dict[fx.Node, bool]) -> list[fx.Node] | None:
    """Return the inputs that must be zero for the node's channels to be zero; None if that is unknown.

    An affine operator needs none, because it is the site of the gate.
    """
    name = operator_name(node)
    value = state.values.get(node)
    call = state.module_calls.get(node)
    if call is not None and isinstance(value, Channels):
        return None if call.zero_sources is None else list(call.zero_sources)
    scores = state.score_calls.get(node)
    if scores is not None and isinstance(value, Channels):
        return [factor for factor in scores.factors if silenceable[factor]][:1] or None
    if isinstance(value, list):
        return _channel_inputs(state, node) if name in _KEEPS_ZEROS else None
    if not isinstance(value, Channels):
        return []  # no removable channels: no tensor must be zero
    if name == "embedding":
        return []
    if name in LAYERS | PRODUCTS | _AFFINE_NORMS:
        return [] if _is_trainable_affine(state, node) else None
    if name in {"pad", "constant_pad_nd"}:
        given = arguments(node)
        constant = name == "constant_pad_nd" or given["mode"] == "constant"
        return _channel_inputs(state, node) if not constant or not given["value"] else None
    if name in _KEEPS_ZEROS:
        return _channel_inputs(state, node)
    if is_pointwise(node) or name in {"max", "min"}:
        return _pointwise_sources(state, node, silenceable)
    return None


def _is_trainable_affine(state: Propagation, node: fx.Node) -> bool:
    """Return True if a gate can be put on a node: it has a weight, and its weight and bias are parameters."""
    parts = layer_parts(node)
    if parts is None and operator_name(node) not in _AFFINE_NORMS:
        return False
    given: dict[str, Any] = arguments(node) if parts is None else {"weight": parts.weight, "bias": parts.bias}
    stored = [state.values[given[key]] for key in ("weight", "bias") if given[key] is not None]
    known = all(isinstance(value, Stored) and value.name in state.parameters for value in stored)
    return known and given["weight"] is not None


def _channel_inputs(state: Propagation, node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(state.values.get(n), (Channels, list))]


def _pointwise_sources(state: Propagation, node: fx.Node, silenceable: dict[fx.Node, bool]) -> list[fx.Node] | None:
    name, tensors = operator_name(node), tensor_inputs(node)
    labelled = [n for n in tensors if isinstance(state.values[n], Channels)]
    if name == "mul":  # one zero factor is enough: the one with a path to an affine operator, not the sigmoid
        return [n for n in labelled if silenceable[n]][:1] or None
    if name == "div":  # 0/0 is not zero, so no channel may be closed that is divided by a function of itself
        numerator = arguments(node)["self"]
        return [numerator] if labelled == [numerator] else None
    if name in {"add", "sub"} and stored_axes(state, node):  # the gate can multiply an added parameter as well
        return labelled
    if len(labelled) != len(tensors):  # combined with a constant or a broadcast value that may not be zero
        return None
    return labelled if _is_zero_at_zero(node) else None


def _is_zero_at_zero(node: fx.Node) -> bool:
    """Return True if the operator maps zero to zero."""

    def zero(source: fx.Node) -> Tensor:
        return torch.zeros([1] * len(shape_of(source)), dtype=torch.float64)

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), zero)
    try:
        return bool((node.target(*args, **kwargs) == 0).all())  # type: ignore[operator]
    except (RuntimeError, TypeError, NotImplementedError):
        return False
