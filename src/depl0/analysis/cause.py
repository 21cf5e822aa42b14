"""Find the channels that make a trial cut fail, and mark them as unprunable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
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
    layer: str = ""
    """The layer that raised; "" if only values differ."""
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
    """Bind a size to its channels if possible; otherwise mark the channels at fault.

    If forward raised, these are the channels close to the failed line. If only values differ, they are most likely
    channels over which attention sums, with a scale that depends on their number: this is tried. If it is wrong, the
    groups at fault are found by bisection.
    """
    if _follow_attributes(analysis, failure) or _tie_sizes(analysis, failure):
        return
    labels = analysis.state.labels
    if not failure.line:
        summed = [node for call in analysis.state.score_calls.values() for node in call.summed]
        channels = [value for node in summed if isinstance(value := analysis.state.values.get(node), Channels)]
        owners = {labels.owner(root) for value in channels for root in labels.roots(value.labels).tolist()}
        owners = owners if owners and retry(owners) is None else set(_at_fault(analysis, retry))
        _mark_groups(analysis, owners, failure)
        return
    values, layer = next(_suspects(analysis, mode, failure), ([], ""))
    for value in values:
        labels.mark_unprunable(value.labels, Reason(failure.reason, layer))
    _mark_same_line(analysis, failure)
    if not values:
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

    The code may use the width of one tensor for another (``v.view(b, -1, heads, k.shape[-1] // heads)``). This is an
    assumption: if the same line fails again, its channels become unprunable.
    """
    if not failure.line or failure.line in analysis.tied_lines:
        return False
    analysis.tied_lines.add(failure.line)
    labels, paths, tied = analysis.state.labels, _like_failed(analysis, failure), False
    alike: dict[tuple[str, int], Tensor] = {}
    for graph, node in analysis.state.literal_size_nodes:
        value, path = analysis.state.values.get(node), graph.layer[node]
        if path not in paths or operator_name(node) not in RESHAPES or not isinstance(value, Channels):
            continue
        if all(labels.reason(label) is None for label in value.labels.tolist()):
            tied |= labels.join(alike.setdefault((path, len(value.labels)), value.labels), value.labels)
    return tied


def _like_failed(analysis: Analysis, failure: Failure) -> set[str]:
    """Return the modules of the same class as the failed one, or as the next one around it with a reshape."""
    modules, path = analysis.state.modules, failure.layer
    sized = {graph.layer[node] for graph, node in analysis.state.literal_size_nodes}
    while path and path not in sized:
        path = path.rpartition(".")[0]
    return {other for other, module in modules.items() if type(module) is type(modules.get(path))}


def _on_line(analysis: Analysis, failure: Failure) -> list[tuple[Graph, fx.Node]]:
    """Return the nodes that the failed line sizes by a number, in all blocks."""
    lines = [(graph, node, node.meta.get("stack_trace") or "") for graph, node in analysis.state.literal_size_nodes]
    return [(graph, node) for graph, node, trace in lines if failure.line and failure.line in trace]


def _suspects(analysis: Analysis, mode: str, failure: Failure) -> Iterator[tuple[list[Channels], str]]:
    """Yield channels that may be at fault, the most likely ones first."""
    graph = next(g for g in analysis.graphs if g.mode == mode)
    at_failure = [node for node in graph.nodes if graph.layer[node] == failure.layer]
    at_failure = at_failure or _first_inside(graph, failure.layer)
    on_line = [node for node in at_failure if failure.line in (node.meta.get("stack_trace") or "")]
    at_failure = on_line or at_failure
    nearby = _back_to_layers(analysis, at_failure)
    sized = {node for owner, node in analysis.state.literal_size_nodes if owner is graph}
    last = max((graph.nodes.index(node) for node in at_failure), default=len(graph.nodes) - 1)
    before = graph.nodes[last::-1]
    for candidates in (
        [node for node in before if node in sized and node in nearby],
        [node for node in at_failure if failure.layer],
        [node for node in before if node in sized],
        at_failure,
    ):
        for node in candidates:
            if free := _free_inputs(analysis, node):
                yield free, graph.layer[node]


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
        for root in own:
            labels.mark_unprunable(torch.tensor([root]), Reason(failure.reason, labels.owner(root)))


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
