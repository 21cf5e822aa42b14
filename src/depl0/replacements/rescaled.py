"""Queries for attention whose scale the code takes from their width.

``F.scaled_dot_product_attention`` divides by the root of the width that it finds, which is smaller in a compact
network. The linear layer that gives the queries makes up for it: :class:`RescaledLinear` takes its place, with the same
parameters under the same names, and multiplies them by the root of the share of the width that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from depl0.analysis.labels import Channels
from depl0.analysis.propagate import Axis, Propagation, ReplacedModule
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.operators import CONCATENATIONS, IDENTITIES
from depl0.replacements.base import ModuleNodes, Replacement, replace_module

_MOVES = IDENTITIES | {"view", "reshape", "unflatten", "flatten", "permute", "transpose", "squeeze", "unsqueeze"}
_PICKS = {"chunk", "split", "split_with_sizes", "unbind", "select", "slice", "getitem"}


@dataclass(frozen=True)
class RescaleSpec:
    """Which outputs of a linear layer are queries: one of several equal parts."""

    width: int
    """the layer's outputs in the dense network"""
    part: int
    parts: int

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts <= self.width:
            raise ValueError(f"{self} is no part of a layer")


class RescaledLinear(nn.Linear):
    """A linear layer whose queries are multiplied by the root of the share of its width that is left."""

    def __init__(self, layer: nn.Linear, spec: RescaleSpec) -> None:
        nn.Module.__init__(self)
        self.spec = spec
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        factor = float((self.weight.shape[0] / self.spec.width) ** 0.5)
        y = F.linear(x, self.weight, self.bias)
        if self.spec.parts == 1:
            return y * factor
        parts = y.chunk(self.spec.parts, -1)
        return torch.cat([part * factor if i == self.spec.part else part for i, part in enumerate(parts)], -1)


def rebuild_rescaled(network: nn.Module, path: str, given: dict[str, Any]) -> None:
    """Put a rescaled layer in the place of a dense one."""
    layer = network.get_submodule(path)
    assert isinstance(layer, nn.Linear)
    replace_module(network, path, RescaledLinear(layer, RescaleSpec(**given)))


@final
class RescaleReplacement(Replacement):
    """A linear layer that gives queries, and nothing else, to attention without a scale of its own."""

    spec: RescaleSpec
    kind: ClassVar[str] = "rescaled"
    spec_type: ClassVar[type] = RescaleSpec
    exported = (RescaleSpec, RescaledLinear, rebuild_rescaled)
    rebuild = rebuild_rescaled

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return every attention whose scale is computed."""
        for node in graph.nodes:
            if operator_name(node) == "scaled_dot_product_attention" and arguments(node).get("scale") is None:
                yield graph.layer[node], [node]

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Say that the scale of this attention can be made up for; its channels are labelled by its own rule."""
        query, key = (arguments(nodes[0])[name] for name in ("query", "key"))
        value = state.values[query]
        within_heads = isinstance(value, Channels) and value.dim == len(shape_of(query)) - 1
        if within_heads and cls._replace_before(state, graph, query, key):
            state.rescaled.add(nodes[0])
        return ()

    @classmethod
    def rescale(cls, state: Propagation, graph: Graph, node: fx.Node) -> None:
        """Make up for a scale that the code computes itself (``q @ k.mT / k.shape[-1] ** 0.5``)."""
        if state.score_calls[node].summed:
            cls._replace_before(state, graph, *state.score_calls[node].summed)

    @classmethod
    def _replace_before(cls, state: Propagation, graph: Graph, query: fx.Node, key: fx.Node) -> bool:
        """Take the layers that give queries, or else keys; tell whether there are such."""
        found = None if query is key else _layers_before(state, graph, query) or _layers_before(state, graph, key)
        known = [(state.replaced.get(layer), cls(spec)) for layer, spec in (found or {}).items()]
        if not found or any(before is not None and before.replacement != wanted for before, wanted in known):
            return False
        for layer, spec in found.items():
            state.replaced[layer] = ReplacedModule(cls(spec), ((f"{layer}.weight", 0),))
        return True

    @classmethod
    def describe(cls, paths: Sequence[str]) -> str:
        """Say what the layers do."""
        what = "make up for the scale of attention, which depends on their width (RescaledLinear)"
        return f"{len(paths)} layers {what}" if len(paths) > 1 else f"{paths[0]} has to {what}"

    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace a layer that has lost queries."""
        module = model.get_submodule(path)
        if not isinstance(module, nn.Linear) or isinstance(module, RescaledLinear):
            return
        if len(module.weight) < self.spec.width:
            replace_module(model, path, RescaledLinear(module, self.spec))

    @classmethod
    def arguments(cls, module: nn.Module) -> dict[str, Any] | None:
        """Return the spec of a rescaled layer."""
        return vars(module.spec) if isinstance(module, RescaledLinear) else None


def _layers_before(state: Propagation, graph: Graph, node: fx.Node) -> dict[str, RescaleSpec] | None:
    """Return the linear layers that a tensor comes from by moves alone, and which of their outputs it is made of.

    There are several where tokens of two streams attend to each other.
    """
    chain = [node]
    while not _is_linear(state.modules.get(graph.layer[node])):
        if operator_name(node) in CONCATENATIONS:
            return _streams_before(state, graph, chain)
        if operator_name(node) not in _MOVES | _PICKS or len(node.all_input_nodes) != 1:
            return None
        node = node.all_input_nodes[0]
        chain.append(node)
    path = graph.layer[node]
    module, rows, width = state.modules[path], _rows_read(chain[::-1]), shape_of(node)[-1]
    if f"{path}.weight" not in state.parameters:
        return None
    if isinstance(module, RescaledLinear):
        return {path: module.spec}
    if rows is None or width % len(rows) or rows[0] % len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        return None
    return {path: RescaleSpec(width, rows[0] // len(rows), width // len(rows))}


def _streams_before(state: Propagation, graph: Graph, chain: list[fx.Node]) -> dict[str, RescaleSpec] | None:
    """Return the layers before a concatenation of tokens, which no other readers follow."""
    *following, node = chain
    value, dim = state.values[node], int(arguments(node)["dim"]) % len(shape_of(node))
    picks = any(operator_name(each) in _PICKS for each in following)
    if picks or not isinstance(value, Channels) or value.dim == dim or any(len(_readers(n)) > 1 for n in chain):
        return None
    found: dict[str, RescaleSpec] = {}
    for source in node.all_input_nodes:
        before = _layers_before(state, graph, source)
        if before is None or found.keys() & before.keys():
            return None
        found.update(before)
    return found


def _readers(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if operator_name(user) not in {"_assert_tensor_metadata", "sym_size"}]


def _is_linear(module: nn.Module | None) -> bool:
    if isinstance(module, RescaledLinear):
        return True
    hooked = module is not None and bool(module._forward_hooks or module._forward_pre_hooks)
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and not hooked


def _rows_read(chain: list[fx.Node]) -> list[int] | None:
    """Return which outputs of a layer come through a chain of moves, in order; None if others read them as well."""
    shape = shape_of(chain[0])
    found: list[Any] = [torch.arange(shape[-1]).expand(shape)]
    for node in chain[1:]:
        found.append(_moved(node, found[-1]))
    rows = set(found[-1].flatten().tolist())
    for node, numbers, following in zip(chain, found, [*chain[1:], None], strict=True):
        others = [user for user in _readers(node) if user is not following]
        for user in others if following is not None else others[1:]:
            read = [numbers[user.args[1]]] if operator_name(user) == "getitem" else [numbers]
            if any(rows.intersection(each.flatten().tolist()) for each in read):
                return None
    return sorted(rows)


def _moved(node: fx.Node, numbers: Any) -> Any:
    name = operator_name(node)
    if name in IDENTITIES:
        return numbers
    if name in {"view", "reshape"}:
        return numbers.reshape(shape_of(node))
    if name == "getitem":
        return numbers[node.args[1]]
    return node.target(*fx.node.map_arg(node.args, lambda _: numbers), **node.kwargs)  # type: ignore[operator]
