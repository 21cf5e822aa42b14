"""From a network to a plan: record the network, propagate labels, place the gates, number them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

import depl0.analysis.rules.layers
import depl0.analysis.rules.moves
import depl0.analysis.rules.parts
import depl0.analysis.rules.scores  # noqa: F401 - they register rules
from depl0.analysis.gate_sites import place_sites
from depl0.analysis.labels import Opaque, Reason, Stored, Value
from depl0.analysis.plan import NO_GATE, Group, GroupChoice, LayerReport, Plan, Product, select
from depl0.analysis.propagate import Axis, Propagation
from depl0.analysis.recording import Graph, has_known_size, is_in_place, operator_name
from depl0.analysis.rules.operators import CONVOLUTIONS, RESHAPES, is_pointwise
from depl0.analysis.rules.rulebook import COMPUTED_WEIGHT, RULES, pointwise_rule, unknown_rule, value_sized_rule
from depl0.errors import NothingToPruneError

if TYPE_CHECKING:
    from depl0.replacements.base import Replacement


class Analysis:
    """Labels and gate sites of one network. A new plan can be made after more channels were marked unprunable."""

    def __init__(self, model: nn.Module, graphs: list[Graph], kinds: Sequence[type[Replacement]]) -> None:
        """``kinds`` are the kinds of modules that are analysed as a whole (:func:`depl0.replacements.base.kinds`)."""
        self.graphs = graphs
        self.state = Propagation(model)
        for graph in graphs:
            _walk(self.state, graph, kinds)
        second_pass = {kind.kind: kind.second_pass(self.state) for kind in kinds}
        if any(second_pass.values()):
            self.state = Propagation(model, self.state)
            self.state.second_pass = second_pass
            for graph in graphs:
                _walk(self.state, graph, kinds)
        for axis, reason in self.state.fixed.items():
            if axis in self.state.axes:
                self.state.labels.mark_unprunable(self.state.axes[axis], reason)
        self.sites = place_sites(self.state, graphs)
        self._mark_unread()
        self._known: dict[str, None] = {}
        self.kinds = kinds
        self.tied_lines: set[str] = set()
        """Lines of forward that failed a trial, whose tensors were then coupled."""

    def _mark_unread(self) -> None:
        """Mark channels as unprunable if a gate on them would have no effect."""
        roots, axes = self.state.labels.all_roots(), self.state.axes
        unread = torch.ones(len(roots), dtype=torch.bool)
        for axis in self.sites:
            unread[roots[axes[axis]]] = False
        for members in axes.values():
            own = roots[members]
            self.state.labels.mark_unprunable(own[unread[own]], Reason("no layer reads these channels"))

    def plan(self, choice: GroupChoice) -> Plan:
        """Return a plan with numbered gates for the chosen groups."""
        return _number(self.state, self.graphs, self.sites, choice, self._known)


def _walk(state: Propagation, graph: Graph, kinds: Sequence[type[Replacement]]) -> None:
    """Visit the operators in order of execution. The inputs of unsupported operators are unprunable."""
    shares_memory: dict[fx.Node, fx.Node] = {}
    position = {node: index for index, node in enumerate(graph.nodes)}
    modules = [(kind, {call[1][0]: call for call in kind.calls(state, graph)}) for kind in kinds]
    understood: set[fx.Node] = set()
    for node in graph.nodes:
        for kind, calls in modules:
            if node in calls and node not in understood:
                understood.update(kind.enter(state, graph, *calls[node]))
        if node in understood:
            continue
        if node.op == "placeholder":
            state.values[node] = _placeholder(graph, node)
        elif node.op == "output":
            for source in node.all_input_nodes:
                state.mark_unprunable(state.values.get(source), Reason("reaches the network's output"))
                state.fix_stored(source, "")
        else:
            name = operator_name(node)
            rule = RULES.get(name) or (pointwise_rule if is_pointwise(node) else unknown_rule)
            if not all(has_known_size(n) for n in (node, *node.all_input_nodes)):
                rule = value_sized_rule
            state.values[node] = rule(state, graph, node)
            _mark_written_views(state, node, shares_memory, position)


def _placeholder(graph: Graph, node: fx.Node) -> Value:
    if node in graph.tensors:
        return Stored(graph.tensors[node])
    if not isinstance(node.meta.get("val"), Tensor):
        return None
    return Opaque(Reason("comes from the network's input" if node in graph.inputs else "meets a constant"))


def _mark_written_views(
    state: Propagation, node: fx.Node, base: dict[fx.Node, fx.Node], position: dict[fx.Node, int]
) -> None:
    """Mark channels as unprunable if their tensor is written to through a view and read afterwards.

    A write to a whole tensor needs no special treatment, because the recorder tracks it.
    """
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return
    schema = getattr(node.target, "_schema", None)
    name = operator_name(node)
    returns_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
    if returns_view or name in RESHAPES or name in {"getitem", "contiguous", "to", "dropout", "chunk", "split"}:
        base[node] = base.get(source, source)
    if not is_in_place(node) or isinstance(state.values.get(source), Stored):
        return
    root = base[node]
    for other in [root, *base]:
        if other is source or other is node or base.get(other, other) is not root:
            continue
        if any(position[user] > position[node] for user in other.users):
            reason = Reason("is changed in place through a view")
            for touched in (other, node):
                state.mark_unprunable(state.values.get(touched), reason)


# -- numbering -----------------------------------------------------------------------------------------------------


def _number(
    state: Propagation, graphs: list[Graph], sites: dict[Axis, str], choice: GroupChoice, known: dict[str, None]
) -> Plan:
    labels, every = state.labels, state.labels.all_roots()
    roots = {axis: every[members] for axis, members in state.axes.items()}
    outputs = _output_axes(state)
    by_owner: dict[str, list[int]] = {}
    for root in torch.cat([every[:0], *(roots[axis] for axis in outputs.values())]).unique().tolist():
        if labels.reason(root) is None:
            by_owner.setdefault(labels.owner(root), []).append(root)
    for owner in [owner for owner, members in by_owner.items() if len(members) == 1]:  # one channel must remain
        labels.mark_unprunable(torch.tensor(by_owner.pop(owner)), Reason("all channels are mutually coupled", owner))
    shared = set(torch.cat([every[:0], *(every[added] for added in state.added_to_shortcut)]).unique().tolist())
    all_groups = _make_groups(by_owner, roots, outputs, shared)
    known.update((group.name, None) for group in all_groups)
    left_out = select(all_groups, choice, known)
    groups = _make_groups(
        {g.name: by_owner[g.name] for g in all_groups if g.name not in left_out}, roots, outputs, shared
    )
    gate_of = torch.full_like(every, NO_GATE)
    for group in groups:
        gate_of[by_owner[group.name]] = torch.arange(group.offset, group.offset + group.size)
    axes = {axis: gate_of[members] for axis, members in roots.items()}
    axes = {axis: numbers for axis, numbers in axes.items() if bool((numbers != NO_GATE).any())}

    def why(root: int) -> str:
        reason = labels.reason(root)
        return str(reason) if reason is not None else left_out[labels.owner(root)]

    plan = Plan(
        groups=tuple(groups),
        layers=_reports(state, {layer: _report(layer, roots[axis], gate_of, why) for layer, axis in outputs.items()}),
        axes=axes,
        sites={axis: layer for axis, layer in sites.items() if axis in axes},
        uses=tuple(use for use in state.layers if use.mode == "evaluation"),
        norm_after=_norms_after_layers(graphs),
        replacements={
            path: found.replacement
            for path, found in state.replaced.items()
            if any(axis in axes for axis in found.axes)
            or any(bool((gate_of[every[members]] != NO_GATE).any()) for members in found.labels)
        },
        products=tuple(Product(gate_of[every[p.labels]], p.macs) for p in state.products),
        filters=tuple(dict.fromkeys(use.out_axis for use in state.layers if use.out_axis in axes)),
    )
    if not groups:
        raise NothingToPruneError(_nothing_to_prune(plan), hint=_what_next(choice, plan))
    return plan


def _output_axes(state: Propagation) -> dict[str, Axis]:
    """Return every layer's output axis, in order of execution; a layer that is called twice is listed once."""
    outputs: dict[str, Axis] = {}
    for use in state.layers:
        outputs.setdefault(use.layer, use.out_axis)
    return outputs


def _norms_after_layers(graphs: list[Graph]) -> dict[str, str]:
    """Return the batch norm that is the only consumer of a layer's output in every graph, for layers with one."""
    found: dict[str, set[str]] = {}
    for graph in graphs:
        for node in graph.nodes:
            if operator_name(node) not in CONVOLUTIONS | {"linear"}:
                continue
            readers = [graph.layer[user] if operator_name(user) == "batch_norm" else "" for user in node.users]
            found.setdefault(graph.layer[node], set()).update(readers if len(readers) == 1 else [""])
    return {layer: next(iter(norms)) for layer, norms in found.items() if len(norms) == 1 and "" not in norms}


def _make_groups(
    by_owner: dict[str, list[int]], roots: dict[Axis, Tensor], outputs: dict[str, Axis], shared: set[int]
) -> list[Group]:
    owner_of = {root: owner for owner, members in by_owner.items() for root in members}
    layers: dict[str, list[str]] = {owner: [] for owner in by_owner}
    for layer, axis in outputs.items():
        for owner in {owner_of[root] for root in roots[axis].tolist() if root in owner_of}:
            layers[owner].append(layer)
    groups, offset = [], 0
    for owner, members in by_owner.items():
        is_shared = any(root in shared for root in members)
        groups.append(Group(owner, len(members), offset, tuple(layers[owner]), is_shared))
        offset += len(members)
    return groups


def _report(layer: str, roots: Tensor, gate_of: Tensor, why: Callable[[int], str]) -> LayerReport:
    without, reasons = roots[gate_of[roots] == NO_GATE], Counter[str]()
    for root, count in zip(*(found.tolist() for found in without.unique(return_counts=True)), strict=True):
        reasons[why(root)] += count
    return LayerReport(layer, len(roots), len(roots) - len(without), tuple(reasons.most_common()))


def _reports(state: Propagation, sliceable: dict[str, LayerReport]) -> tuple[LayerReport, ...]:
    """Return the reports of all layers in order of execution, including those that cannot be sliced."""
    place: dict[str, int] = {}
    for index, use in enumerate(state.layers):
        place.setdefault(use.layer, index)
    reports = [((place[layer], 1), report) for layer, report in sliceable.items()]
    for layer, (index, channels, reason) in state.refused.items():
        if layer not in sliceable:
            reports.append(((index, 0), LayerReport(layer, channels, 0, ((str(reason), channels),))))
    return tuple(report for _, report in sorted(reports, key=lambda entry: entry[0]))


def _what_next(choice: GroupChoice, plan: Plan) -> str:
    if choice != "all":
        return "choose other groups, or groups='all'."
    if any(reason.startswith(COMPUTED_WEIGHT) for reason in plan.unprunable()):
        return (
            "store the weights as they are: torch.nn.utils.parametrize.remove_parametrizations, prune.remove, "
            "remove_weight_norm or remove_spectral_norm."
        )
    return "pass another network."


def _nothing_to_prune(plan: Plan) -> str:
    reasons = [f"  {channels} channels: {reason}" for reason, channels in plan.unprunable().items()]
    if not reasons:
        return (
            "nothing can be pruned: the network calls no convolution or linear layer whose weight is a parameter of it."
        )
    return "\n".join(["nothing can be pruned:", *reasons[:12]])
