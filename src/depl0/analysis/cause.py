"""Find the channels that make a trial cut fail, and mark them as unprunable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, fx

from depl0.analysis.analyse import Analysis
from depl0.analysis.labels import Channels, Reason
from depl0.analysis.recording import Graph, operator_name
from depl0.analysis.rules.operators import LAYERS, PRODUCTS, RESHAPES
from depl0.analysis.rules.parts import follow_sizes


@dataclass(frozen=True)
class Failure:
    """The position at which a trial cut fails: the cut network cannot be run there, or computes other values."""

    case: str
    layer: str
    line: str = ""
    """The line of forward that raised, as printed in a traceback; "" if only values differ."""
    training: bool = False

    @property
    def reason(self) -> str:
        """Return the reason why the channels at fault cannot be pruned."""
        return "its size is fixed in the code of forward" if self.line else "its number of channels changes the values"


Retry: TypeAlias = Callable[[Collection[str]], "Failure | None"]
"""Tries the same plan again, without cutting these groups."""


def mark_cause(analysis: Analysis, mode: str, failure: Failure, retry: Retry) -> None:
    """Bind a size to its channels if possible; otherwise mark the channels at fault, close to the failure.

    All layers before the failure have run and agreed, so the fault is most likely between them and the failure. If only
    values differ, this is an assumption: it is tried, and if it is wrong, the groups at fault are found by bisection.
    """
    if _follow_attributes(analysis, failure) or _tie_sizes(analysis, failure):
        return
    labels = analysis.state.labels
    for values, node, graph in _suspects(analysis, mode, failure):
        owners = {labels.owner(label) for value in values for label in labels.roots(value.labels).tolist()}
        if not failure.line and _fails_there(retry(owners), failure):
            break
        for value in values:
            labels.mark_unprunable(value.labels, Reason(failure.reason, graph.layer[node]))
        _mark_same_line(analysis, failure)
        return
    _mark_groups(analysis, _at_fault(analysis, retry), failure)


def _follow_attributes(analysis: Analysis, failure: Failure) -> bool:
    """Bind attributes that size tensors to the channels, in every module that contains the failed line.

    All sizes of such a module are checked: with a -1 among them, a reshape that uses the same number need not fail.
    """
    modules = {graph.layer[node] for graph, node in _on_line(analysis, failure)}
    if failure.line and not modules:  # the line is in a function called by forward
        modules = _like_failed(analysis, failure)
    sized = [(graph, node) for graph, node in analysis.state.literal_size_nodes if graph.layer[node] in modules]
    return sum(follow_sizes(analysis.state, graph, node) for graph, node in sized) > 0


def _tie_sizes(analysis: Analysis, failure: Failure) -> bool:
    """Couple tensors that modules like the failed one reshape to equal widths, so that they lose the same channels.

    The code may use the width of one tensor for another (``v.view(b, -1, heads, k.shape[-1] // heads)``), or for the
    module's input (``y.reshape(x.shape)``). These are assumptions: each is reverted if the same line is the next to
    fail.
    """
    labels = analysis.state.labels
    for sources in (_reshaped, _reshaped_or_read) if failure.line else ():
        guess = f"{sources.__name__}: {failure.line}"
        if _was_guessed(analysis, guess):
            continue
        before = labels.snapshot()
        analysis.guesses[guess] = partial(labels.restore, before)
        alike: dict[tuple[str, int], Tensor] = {}
        changed = False
        for path, value in sources(analysis, _like_failed(analysis, failure)):
            if all(labels.reason(label) is None for label in value.labels.tolist()):
                changed |= labels.join(alike.setdefault((path, len(value.labels)), value.labels), value.labels)
        if changed:
            return True
    return False


def _reshaped(analysis: Analysis, paths: set[str]) -> Iterator[tuple[str, Channels]]:
    """Yield the tensors that these modules reshape."""
    for graph, node in analysis.state.literal_size_nodes:
        value = analysis.state.values.get(node)
        if graph.layer[node] in paths and operator_name(node) in RESHAPES and isinstance(value, Channels):
            yield graph.layer[node], value


def _reshaped_or_read(analysis: Analysis, paths: set[str]) -> Iterator[tuple[str, Channels]]:
    """Yield the tensors that these modules reshape, and their inputs."""
    yield from _reshaped(analysis, paths)
    for graph in analysis.graphs:
        for node in graph.nodes:
            path = next((path for path in paths if path and f"{graph.layer[node]}.".startswith(f"{path}.")), None)
            for source in node.all_input_nodes if path is not None else ():
                value = analysis.state.values.get(source)
                if isinstance(value, Channels) and not f"{graph.layer[source]}.".startswith(f"{path}."):
                    yield str(path), value


def _like_failed(analysis: Analysis, failure: Failure) -> set[str]:
    """Return the modules of the same class as the failed one, or as the next one around it with a reshape."""
    modules, path = analysis.state.modules, failure.layer
    sized = {graph.layer[node] for graph, node in analysis.state.literal_size_nodes}
    while path and path not in sized:
        path = path.rpartition(".")[0]
    return {other for other, module in modules.items() if type(module) is type(modules.get(path))}


def _was_guessed(analysis: Analysis, guess: str) -> bool:
    """Return True if an assumption has already been made; if it was the last one, it is reverted."""
    if guess in analysis.guesses and next(reversed(analysis.guesses)) == guess:
        analysis.guesses[guess]()
        analysis.guesses[guess] = int
    return guess in analysis.guesses


def _on_line(analysis: Analysis, failure: Failure) -> list[tuple[Graph, fx.Node]]:
    """Return the nodes that the failed line sizes by a number, in all blocks."""
    lines = [(graph, node, node.meta.get("stack_trace") or "") for graph, node in analysis.state.literal_size_nodes]
    return [(graph, node) for graph, node, trace in lines if failure.line and failure.line in trace]


def _fails_there(again: Failure | None, failure: Failure) -> bool:
    return again is not None and (again.layer, again.training) == (failure.layer, failure.training)


def _suspects(analysis: Analysis, mode: str, failure: Failure) -> Iterator[tuple[list[Channels], fx.Node, Graph]]:
    """Yield channels that may be at fault, the most likely ones first."""
    graph = next(g for g in analysis.graphs if g.mode == mode)
    at_failure = [node for node in graph.nodes if graph.layer[node] == failure.layer]
    at_failure = at_failure or _first_inside(graph, failure.layer)
    on_line = [node for node in at_failure if failure.line and failure.line in (node.meta.get("stack_trace") or "")]
    at_failure = on_line or at_failure
    nearby = _back_to_layers(analysis, at_failure)
    sized = {node for owner, node in analysis.state.literal_size_nodes if owner is graph}
    last = max((graph.nodes.index(node) for node in at_failure), default=len(graph.nodes) - 1)
    before = graph.nodes[last::-1]
    scores = {node for node, call in analysis.state.score_calls.items() if call.summed and not failure.line}
    for candidates in (
        [node for node in before if node in scores and node in nearby],  # possibly scaled by the number of channels
        [node for node in before if node in sized and node in nearby],
        [node for node in at_failure if failure.layer],
        [node for node in before if node in sized],
        at_failure,
    ):
        for node in candidates:
            if free := _free_inputs(analysis, node):
                yield free, node, graph


def _at_fault(analysis: Analysis, retry: Retry) -> list[str]:
    """Return the groups whose cut alone makes a trial fail; several if they only fail together."""
    labels = analysis.state.labels
    roots = {root for axis in analysis.state.axes.values() for root in labels.roots(axis).tolist()}
    groups = list(dict.fromkeys(labels.owner(root) for root in sorted(roots) if labels.reason(root) is None))
    suspects = groups
    while len(suspects) > 1:
        half = len(suspects) // 2
        for part in (suspects[:half], suspects[half:]):
            if retry([name for name in groups if name not in part]) is not None:
                suspects = part
                break
        else:
            break
    return suspects


def _mark_groups(analysis: Analysis, names: Collection[str], failure: Failure) -> None:
    labels = analysis.state.labels
    for axis in analysis.state.axes.values():
        own = [root for root in labels.roots(axis).tolist() if labels.owner(root) in names]
        labels.mark_unprunable(torch.tensor(own, dtype=torch.long), Reason(failure.reason, failure.layer))


def _first_inside(graph: Graph, layer: str) -> list[fx.Node]:
    """Return the first operator inside a module that fails before it runs any operator itself (an assert)."""
    inside = [node for node in graph.nodes if layer and graph.layer[node].startswith(f"{layer}.")]
    return inside[:1]


def _mark_same_line(analysis: Analysis, failure: Failure) -> None:
    """Mark channels that the same line sizes by a number in other blocks, to avoid a trial for every block."""
    for graph, node in _on_line(analysis, failure):
        for value in _free_inputs(analysis, node):
            analysis.state.labels.mark_unprunable(value.labels, Reason(failure.reason, graph.layer[node]))


def _back_to_layers(analysis: Analysis, nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes and all nodes before them, back to the previous layers."""
    products = analysis.state.score_calls
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            before = node.all_input_nodes
            stack.extend(n for n in before if operator_name(n) not in LAYERS | PRODUCTS or n in products)
    return found


def _free_inputs(analysis: Analysis, node: fx.Node) -> list[Channels]:
    """Return the unmarked channels of a node's inputs, or else its own."""
    labels = analysis.state.labels
    for nodes in (node.all_input_nodes, [node]):
        values = [value for n in nodes if isinstance(value := analysis.state.values.get(n), Channels)]
        free = [value for value in values if any(labels.reason(label) is None for label in value.labels.tolist())]
        if free:
            return free
    return []
