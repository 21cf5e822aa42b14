"""Small modules that look at all channels at once: where they hold channels back, they are run at their full width.

The compact network gives them zeros for the channels that are gone (:mod:`depl0.replacements.full_width`), so
these must be zeros when they come in. What comes out is what the dense network has there, whatever the module does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from depl0.analysis.labels import Reason
from depl0.analysis.propagate import Axis, Propagation
from depl0.analysis.recording import Graph, has_known_size, is_in_place, operator_name, shape_of
from depl0.analysis.rules.operators import LAYERS
from depl0.analysis.values import Channels, Opaque
from depl0.replacements.full_width import WidthSpec, spec_of

_SMALL = 512
"""a module is small if its weights, vectors apart, have no more entries"""


@dataclass(frozen=True)
class WideCall:
    """One call of a module that is run at its full width."""

    path: str
    source: fx.Node
    keeps_zeros: bool
    """whether a closed channel comes out as zero"""


def width_axis(path: str) -> Axis:
    """Name the channels that a module reads, like an axis of a parameter."""
    return f"{path}.(channels)", 0


def to_be_widened(state: Propagation) -> set[str]:
    """Return the small modules that hold back channels which come from outside, the innermost of those around it."""
    found = {path for path, module in state.modules.items() if spec_of(module) is not None}
    for path, owners in state.blocking.items():
        for candidate in (path, path.rpartition(".")[0]):
            outside = any(owner != candidate and not owner.startswith(f"{candidate}.") for owner in owners)
            if candidate and outside and _is_small(state.modules.get(candidate)):
                found.add(candidate)
                break
    return {path for path in found if not any(path.startswith(f"{other}.") for other in found)}


def _is_small(module: nn.Module | None) -> bool:
    if module is None or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) in {nn.Sequential, nn.ModuleList, nn.ModuleDict} or parametrize.is_parametrized(module):
        return False
    matrices = [p.numel() for p in module.parameters() if sum(size > 1 for size in p.shape) > 1]
    return sum(matrices) <= _SMALL


def modules_widened(state: Propagation, graph: Graph) -> dict[fx.Node, tuple[str, list[fx.Node]]]:
    """Return, for the first node of every call of a module that is run at its full width, its path and all nodes."""
    calls: dict[tuple[str, str], list[fx.Node]] = {}
    for node in graph.nodes if state.widened else []:
        for key, (name, _) in (node.meta.get("nn_module_stack") or {}).items():
            path = str(name).removeprefix("L['self']").removeprefix(".").split("@")[0]
            if path in state.widened and node.op == "call_function":
                calls.setdefault((str(key), path), []).append(node)
                break
    return {nodes[0]: (path, nodes) for (_, path), nodes in calls.items()}


def wide_call(state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> bool:
    """Give a call of a module the values that it has at its full width; tell whether that could be done."""
    inside = set(nodes)
    given = {n for node in nodes for n in node.all_input_nodes if n not in inside}
    stored = {n for n in given if n in graph.tensors}
    sources = {n for n in given - stored if n.op != "placeholder" or n in graph.inputs}  # the others are constants
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    if len(sources) != 1 or len(results) != 1 or not isinstance(results[0].meta.get("val"), Tensor):
        return False
    if any(is_in_place(node) or not has_known_size(node) for node in nodes):
        return False
    source, result = sources.pop(), results[0]
    value = state.values[source]
    if not isinstance(value, Channels):
        return False
    for node in nodes:
        state.values[node] = Opaque(Reason("is run with all channels", path))
        if operator_name(node) in LAYERS:
            place, layer = len(state.layers), graph.layer[node]
            channels = shape_of(node)[-1 if operator_name(node) == "linear" else 1]
            state.refused.setdefault(layer, (place, channels, Reason("is run with all channels", path)))
    for node in stored:
        state.fix_stored(node, path)
    shape, width = shape_of(result), len(value.labels)
    alike = len(shape) == len(shape_of(source)) and shape[value.dim] == width
    if alike:
        state.values[result] = Channels(value.dim, value.labels)
    axis = width_axis(path)
    state.labels.join(state.axes.setdefault(axis, value.labels), value.labels)
    is_factor = operator_name(result) == "mul" and source in result.all_input_nodes
    found = WidthSpec(width, value.dim, value.dim if alike else None, alike and is_factor)
    spec = state.wide[path] = spec_of(state.modules[path]) or found
    state.wide_calls[result] = WideCall(path, source, spec.keeps_zeros)
    return True


def freeze_unsilenced_width(state: Propagation, call: WideCall) -> None:
    """Freeze the channels of a module at full width that cannot be made zero when they come in."""
    value = state.values[call.source]
    if isinstance(value, Channels):
        state.labels.freeze(value.labels, Reason("all channels are read, and they cannot be made zero", call.path))


def widths_of_plan(state: Propagation, gated: set[int]) -> dict[str, WidthSpec]:
    """Return the modules at full width that may lose channels."""

    def loses(path: str) -> bool:
        labels = torch.as_tensor(state.axes[width_axis(path)])
        return bool(gated.intersection(state.labels.roots(labels).tolist()))

    return {path: spec for path, spec in state.wide.items() if loses(path)}
