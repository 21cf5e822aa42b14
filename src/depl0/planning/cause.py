"""Which channels are at fault where a trial cut fails, and freezing them."""

from __future__ import annotations

from torch import fx

from depl0.analysis.analyse import Analysis
from depl0.analysis.labels import Reason
from depl0.analysis.operators import LAYERS, PRODUCTS
from depl0.analysis.recording import Graph, operator_name
from depl0.analysis.values import Channels
from depl0.errors import TraceError
from depl0.planning.trial import Failure


def freeze_cause(analysis: Analysis, mode: str, failure: Failure) -> None:
    """Freeze the channels at fault: those of an operator with a size in the code, as near to the failure as possible.

    All layers before the failure have run and agreed, so the fault is most likely between them and it.
    """
    graph = next(g for g in analysis.graphs if g.mode == mode)
    at_failure = [node for node in graph.nodes if graph.layer[node] == failure.layer]
    on_line = [node for node in at_failure if failure.line and failure.line in (node.meta.get("stack_trace") or "")]
    at_failure = on_line or at_failure
    nearby = _back_to_layers(analysis, at_failure)
    sized = {node for owner, node in analysis.state.sized_by_code if owner is graph}
    last = max((graph.nodes.index(node) for node in at_failure), default=len(graph.nodes) - 1)
    before = graph.nodes[last::-1]
    scores = {node for node, call in analysis.state.score_calls.items() if call.summed and not failure.line}
    for candidates in (
        [node for node in before if node in scores and node in nearby],  # scaled by the number of channels, perhaps
        [node for node in before if node in sized and node in nearby],
        [node for node in at_failure if failure.layer],
        [node for node in before if node in sized],
        at_failure,
    ):
        if any(_freeze_inputs(analysis, graph, node, failure.reason) for node in candidates):
            _freeze_same_line(analysis, failure)
            return
    raise TraceError(
        f"a trial cut of the network fails at {failure.layer or 'its forward'} and no operator there explains it.",
        hint="leave the groups around that layer out with groups=[...], and report the network.",
    )


def _freeze_same_line(analysis: Analysis, failure: Failure) -> None:
    """Freeze what the same line sizes by a number in other blocks: else every block would need a trial of its own."""
    for graph, node in analysis.state.sized_by_code:
        if failure.line and failure.line in (node.meta.get("stack_trace") or ""):
            _freeze_inputs(analysis, graph, node, failure.reason)


def _back_to_layers(analysis: Analysis, nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes and all that goes into them, back to the layers before."""
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


def _freeze_inputs(analysis: Analysis, graph: Graph, node: fx.Node, reason: str) -> bool:
    """Freeze the channels that go into a node, or else its own; tell whether there were any left to freeze."""
    labels = analysis.state.labels
    for nodes in (node.all_input_nodes, [node]):
        values = [value for n in nodes if isinstance(value := analysis.state.values.get(n), Channels)]
        free = [value for value in values if any(labels.reason(label) is None for label in value.labels.tolist())]
        for value in free:
            labels.freeze(value.labels, Reason(reason, graph.layer[node]))
        if free:
            return True
    return False
