"""The graph of a network, in evaluation and in training mode, recorded by ``torch.export``."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from depl0._util.process import ignored_logs, ignored_warnings
from depl0.errors import TraceError
from depl0.host.inputs import ExampleInputs, output_tensors
from depl0.host.network import canonical_names, first_line

_TORCH = Path(torch.__file__).parent
_DEPL0 = Path(__file__).parents[1]
_REGIONS = {
    torch.ops.higher_order.wrap_with_set_grad_enabled,
    torch.ops.higher_order.wrap_with_autocast,
    torch.ops.higher_order.tag_activation_checkpoint,
}


@dataclass
class Graph:
    """One recorded forward pass."""

    mode: str
    nodes: list[fx.Node]
    tensors: dict[fx.Node, str]
    """Placeholder -> canonical name of its parameter or buffer."""
    inputs: set[fx.Node]
    layer: dict[fx.Node, str] = field(default_factory=dict)
    """Node -> path of the innermost module that called it."""


def operator_name(node: fx.Node) -> str:
    """Return the aten name of a node's operator, without the underscore of in-place forms.

    For a node that is not an aten operator, this is the name of its Python function, or "".
    """
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return "getitem" if node.target is operator.getitem else getattr(node.target, "__name__", str(node.target))
    name = str(schema.name).removeprefix("aten::")
    return name if name.startswith("__") else name.rstrip("_")


def is_in_place(node: fx.Node) -> bool:
    """Return True if a node writes into its first argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and bool(alias.is_write)


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return a node's arguments by the names of its operator's schema, including defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    values: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            values[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            values[argument.name] = node.kwargs[argument.name]
        else:
            values[argument.name] = argument.default_value if argument.has_default_value() else None
    return values


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor."""
    return tuple(int(size) for size in node.meta["val"].shape)


def has_known_size(node: fx.Node) -> bool:
    """Return True if the sizes of a node's tensor are numbers; after a boolean mask they depend on values."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(isinstance(size, int) for size in value.shape)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the logs and warnings of torch.export, because our errors contain the relevant information."""
    with ignored_logs("torch"), ignored_warnings():
        yield


def record(model: nn.Module, example: ExampleInputs, mode: str) -> Graph:
    """Record one pass of a private copy of the host: the training pass for the mode "training", else an evaluation.

    Both are needed: auxiliary heads, stochastic depth and the like only exist in training, and if one of their input
    layers is sliced, they must be sliced too.
    """
    model.train(mode == "training")
    return _export(model, example, mode)


@contextmanager
def _tensors_only(model: nn.Module) -> Iterator[None]:
    """Make a network return a plain tuple of its output tensors, because the recorder does not support every class."""
    handle = model.register_forward_hook(lambda _, __, outputs: tuple(output_tensors(outputs)))
    try:
        yield
    finally:
        handle.remove()


def _export(model: nn.Module, example: ExampleInputs, mode: str) -> Graph:
    try:
        with quiet(), _tensors_only(model):
            program = torch.export.export(model, example.args, example.kwargs, strict=False)
    except Exception as error:
        raise TraceError(
            f"the {mode} pass of {type(model).__name__} cannot be recorded: {first_line(error)}{user_frame(error)}",
            hint="forward must not branch on the values of tensors (if x.sum() > 0, .item(), .tolist()); "
            "move such code out of forward, or replace it by torch.where.",
        ) from error
    names = canonical_names(model)
    signature = program.graph_signature
    _inline_regions(program.graph_module)
    by_placeholder = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = list(program.graph.nodes)
    user_inputs = set(signature.user_inputs)
    graph = Graph(
        mode=mode,
        nodes=nodes,
        tensors={n: names[by_placeholder[n.name]] for n in nodes if n.op == "placeholder" and n.name in by_placeholder},
        inputs={n for n in nodes if n.op == "placeholder" and n.name in user_inputs},
    )
    for node in nodes:
        graph.layer[node] = module_path(node)
    return graph


def _inline_regions(module: fx.GraphModule) -> None:
    """Inline the operators of no_grad, autocast and checkpoint regions, which do not affect channels."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _REGIONS:
            continue
        place = next((i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr"), -1)
        region = module.get_submodule(str(node.args[place].target)) if place >= 0 else None
        if not isinstance(region, fx.GraphModule):
            continue
        _inline_regions(region)
        placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
        with module.graph.inserting_before(node):
            inside = dict(zip(placeholders, node.args[place + 1 :], strict=True))
            outputs = module.graph.graph_copy(region.graph, inside)
        for user in list(node.users):
            picks = user.op == "call_function" and user.target is operator.getitem
            if picks and isinstance(outputs, (list, tuple)):
                user.replace_all_uses_with(outputs[user.args[1]])
                module.graph.erase_node(user)
        if node.users:
            node.replace_all_uses_with(outputs)
        module.graph.erase_node(node)


def stack_of(node: fx.Node) -> list[tuple[str, str]]:
    """Return the modules that called a node, outermost first: a key for each call, and the module's path."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (str(key), str(name).removeprefix("L['self']").removeprefix(".").split("@")[0])
        for key, (name, _) in stack.items()
    ]


def module_path(node: fx.Node) -> str:
    """Return the path of the innermost module that called a node."""
    stack = stack_of(node)
    return stack[-1][1] if stack else ""


def user_frame(error: BaseException) -> str:
    """Return the last line of the user's own code in a traceback, with its file."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not Path(frame.filename).is_relative_to(_TORCH) and not Path(frame.filename).is_relative_to(_DEPL0):
            return f" (in {frame.name}, {frame.filename}:{frame.lineno}: {frame.line})"
    return ""


def user_line(error: BaseException) -> str:
    """Return the line of forward that raised, in the form in which recorded nodes store theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not Path(f.filename).is_relative_to(_DEPL0)]
    inner = next((f for f in reversed(frames) if f.name == "forward"), None)
    frame = next((f for f in reversed(frames) if not Path(f.filename).is_relative_to(_TORCH)), inner)
    return f'File "{frame.filename}", line {frame.lineno}, ' if frame is not None else "unknown line"
