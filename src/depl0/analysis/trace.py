"""The graph of a network, in evaluation and in training mode, recorded by ``torch.export``."""

from __future__ import annotations

import copy
import io
import logging
import operator
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from depl0.errors import InputError, TraceError

_TORCH = Path(torch.__file__).parent
_DEPL0 = Path(__file__).parents[1]


@dataclass(frozen=True)
class ExampleInputs:
    """What the host is called with: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, inputs: object) -> ExampleInputs:
        """Accept a tensor, a tuple of positional arguments or a dict of keyword arguments."""
        if isinstance(inputs, ExampleInputs):
            return inputs
        if isinstance(inputs, Tensor):
            return cls((inputs,), {})
        if isinstance(inputs, tuple):
            example = cls(inputs, {})
        elif isinstance(inputs, dict):
            if not all(isinstance(key, str) for key in inputs):
                raise InputError("example_inputs is a dict whose keys are not all argument names.")
            example = cls((), dict(inputs))
        else:
            raise InputError(
                f"example_inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, "
                f"got {type(inputs).__name__} instead.",
                hint="pass e.g. torch.randn(1, 3, 224, 224), or (x, mask) for a network with two inputs.",
            )
        if not any(isinstance(leaf, Tensor) for leaf in example.leaves()):
            raise InputError("example_inputs holds no tensor.", hint="pass what the network's forward takes.")
        return example

    def leaves(self) -> list[Any]:
        """Return all tensors and other leaves."""
        return list(pytree.tree_leaves((self.args, self.kwargs)))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the positional inputs, or nothing if there are others than tensors of numbers."""
        plain = all(isinstance(arg, Tensor) and arg.is_floating_point() for arg in self.args) and not self.kwargs
        return tuple(tuple(arg.shape) for arg in self.args) if plain else ()

    def map_tensors(self, function: Any) -> ExampleInputs:
        """Return the same structure with ``function`` applied to every tensor."""
        args, kwargs = pytree.tree_map(
            lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs)
        )
        return ExampleInputs(args, kwargs)

    def on_device_of(self, model: nn.Module) -> ExampleInputs:
        """Return the same inputs where the model's parameters are."""
        device = next(model.parameters()).device
        return self.map_tensors(lambda t: t.to(device))

    def twice(self) -> ExampleInputs:
        """Return a batch of two where every tensor is a batch of one (batch norm cannot train on one value)."""
        return self.map_tensors(lambda t: torch.cat([t, t]) if t.dim() > 0 and t.shape[0] == 1 else t)


@dataclass
class Graph:
    """One recorded forward pass."""

    mode: str
    nodes: list[fx.Node]
    tensors: dict[fx.Node, str]
    """placeholder -> canonical name of the parameter or buffer it stands for"""
    inputs: set[fx.Node]
    layer: dict[fx.Node, str] = field(default_factory=dict)
    """node -> path of the innermost module it was called in"""


def operator_name(node: fx.Node) -> str:
    """Return the aten name of a node's operator, without the underscore of in-place forms.

    A node that is no aten operator gives the name of its Python function, or "".
    """
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return "getitem" if node.target is operator.getitem else getattr(node.target, "__name__", str(node.target))
    name = str(schema.name).removeprefix("aten::")
    return name if name.startswith("__") else name.rstrip("_")


def is_in_place(node: fx.Node) -> bool:
    """Tell whether a node writes into its first argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and bool(alias.is_write)


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return a node's arguments by the names of its operator's schema, defaults filled in."""
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


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Map every name of every parameter and buffer to the first name of the same tensor (tied parameters)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


class Gated(nn.Module):
    """What every gated network is; it cannot be a host itself."""


def check_host(model: object) -> nn.Module:
    """Refuse what cannot be a host before anything is tried with it."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module, got {type(model).__name__} instead.",
            hint="pass the network itself, e.g. torchvision.models.resnet18()."
            if not isinstance(model, type)
            else f"pass an instance: {model.__name__}(...)",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("model is a TorchScript module.", hint="pass the network it was scripted from.")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise InputError(
            f"model is wrapped in {type(model).__name__}.", hint="pass model.module, and wrap the gated model instead."
        )
    if hasattr(model, "_orig_mod"):
        raise InputError(
            "model is compiled by torch.compile.", hint="pass the original network, and compile the gated model."
        )
    if any(isinstance(module, Gated) for module in model.modules()):
        raise InputError(
            "model is already gated.", hint="use the gated model you have, or attach to its .host with other settings."
        )
    return model


def private_copy(model: nn.Module) -> nn.Module:
    """Copy the host, so that nothing the analysis does can reach it."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"model cannot be copied: {error}",
            hint="copy.deepcopy(model) must work; a tensor attribute that is the result of a computation prevents it.",
        ) from error


@contextmanager
def module_stack() -> Iterator[list[nn.Module]]:
    """Follow which modules are running; after an exception the list still ends with the module that raised it."""
    stack: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        stack.append(module)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        while stack and stack.pop() is not module:
            pass

    handles = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave),
    ]
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch.export's own logs and prints away from the user: what matters of them is in our errors."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def run_checked(model: nn.Module, example: ExampleInputs) -> Any:
    """Run the network once, in its present mode; a failure says in which layer."""
    running: list[nn.Module] = []
    try:
        with module_stack() as running, torch.no_grad():
            return model(*example.args, **example.kwargs)
    except Exception as error:
        layer = path_of(model, running)
        shapes = ", ".join(
            str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in example.leaves()
        )
        raise InputError(
            f"the network does not run on example_inputs ({shapes}): "
            f"{type(error).__name__} at {layer or type(model).__name__}: {first_line(error)}",
            hint="pass inputs of the shape, type and device that the network is trained with.",
        ) from error


def path_of(model: nn.Module, running: list[nn.Module]) -> str:
    """Return the path, in ``model``, of the innermost running module that belongs to it."""
    names = {module: name for name, module in model.named_modules()}
    return next((names[module] for module in reversed(running) if module in names), "")


def record(model: nn.Module, example: ExampleInputs) -> list[Graph]:
    """Record the evaluation pass and the training pass of a private copy of the host.

    Both are needed: auxiliary heads, stochastic depth and the like exist in training only, and slicing a layer that
    feeds them must slice them too.
    """
    model.eval()
    evaluation = _export(model, example, "evaluation")
    model.train()
    try:
        training = _export(model, example, "training")
    except TraceError:
        doubled = example.twice()
        if all(a is b for a, b in zip(example.leaves(), doubled.leaves(), strict=True)):
            raise
        training = _export(model, doubled, "training")
    return [evaluation, training]


def _export(model: nn.Module, example: ExampleInputs, mode: str) -> Graph:
    try:
        with quiet():
            program = torch.export.export(model, example.args, example.kwargs, strict=False)
    except Exception as error:
        raise TraceError(
            f"the {mode} pass of {type(model).__name__} cannot be recorded: {first_line(error)}{user_frame(error)}",
            hint="forward must not branch on the values of tensors (if x.sum() > 0, .item(), .tolist()); "
            "move such code out of forward, or replace it by torch.where.",
        ) from error
    names = canonical_names(model)
    signature = program.graph_signature
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


def module_path(node: fx.Node) -> str:
    """Return the path of the innermost module that a node was called in."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = path.removeprefix("L['self']").removeprefix(".")
    return path.split("@")[0]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: those of torch run over pages."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def user_frame(error: BaseException) -> str:
    """Name the last line of the user's own code in a traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not Path(frame.filename).is_relative_to(_TORCH) and not Path(frame.filename).is_relative_to(_DEPL0):
            return f" (in {frame.name}, {frame.filename}:{frame.lineno}: {frame.line})"
    return ""


def user_line(error: BaseException) -> str:
    """Return the line of forward that raised, in the form in which recorded nodes remember theirs."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not Path(f.filename).is_relative_to(_DEPL0)]
    inner = next((f for f in reversed(frames) if f.name == "forward"), None)
    frame = next((f for f in reversed(frames) if not Path(f.filename).is_relative_to(_TORCH)), inner)
    return f'File "{frame.filename}", line {frame.lineno}, ' if frame is not None else "unknown line"
