"""The user's network: checks of a host, names of its tensors, its modes, and runs with helpful error messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from depl0.errors import Depl0Error, InputError
from depl0.host.inputs import ExampleInputs


class Gated(nn.Module):
    """Base class of all gated models, which cannot be hosts themselves."""


def check_host(model: object) -> nn.Module:
    """Raise an error for an object that cannot be a host, before anything is done with it."""
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
    _check_values(model)
    return model


def require_unsharded(parameter: Tensor) -> None:
    """Raise an error for a parameter that is sharded over several processes (FSDP2, tensor parallelism)."""
    loaded = sys.modules.get("torch.distributed.tensor")  # no such parameters exist before it is imported
    if loaded is not None and isinstance(parameter, loaded.DTensor):
        raise InputError(
            "the network is sharded (its parameters are DTensors); gates and cuts need whole parameters.",
            hint="wrap the gated network in DistributedDataParallel, which follows cuts; or prune first, and shard the "
            "compact network.",
        )


def _check_values(model: nn.Module) -> None:
    """Raise an error for a network whose parameters have no values (meta tensors), which cannot be compared."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        require_unsharded(tensor)
        if is_lazy(tensor):
            raise InputError(
                f"{name} has no shape yet.", hint="run the network once, which sets the sizes of its lazy layers."
            )
        if tensor.is_meta:
            raise InputError(
                f"{name} is on the meta device and has no values.",
                hint='allocate and load its weights first: model.to_empty(device="cpu"), then load_state_dict.',
            )


def check_finite(model: nn.Module) -> None:
    """Raise an error for a network with non-finite weights, whose outputs cannot be compared."""
    for name, tensor in model.named_parameters():
        if bool(tensor.detach().sum().isfinite()):  # the usual case, and a fast check
            continue
        bad = ~tensor.isfinite() if tensor.requires_grad else tensor.isnan()
        if bool(bad.any()):
            raise InputError(
                f"{name} holds {'NaN' if bool(tensor.isnan().any()) else 'infinite values'}.",
                hint="its training has diverged, or the file is damaged: go back to an earlier checkpoint.",
            )


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Map every name of every parameter and buffer to the first name of the same tensor (tied parameters)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


def tied_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the other names of shared tensors; a module counts once, even if it has several names."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, tensor in [*module.named_parameters(path, False), *module.named_buffers(path, False)]:
            names.setdefault(id(tensor), []).append(name)
    return {name: tuple(o for o in same if o != name) for same in names.values() if len(same) > 1 for name in same}


@contextmanager
def module_stack() -> Iterator[list[nn.Module]]:
    """Track the running modules of this thread; after an exception the list ends with the module that raised it."""
    stack: list[nn.Module] = []
    thread = get_ident()

    def enter(module: nn.Module, _: Any) -> None:
        if get_ident() == thread:
            stack.append(module)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        while get_ident() == thread and stack and stack.pop() is not module:
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


def run_checked(model: nn.Module, example: ExampleInputs, call: Callable[..., Any] | None = None) -> Any:
    """Run the network once, in its current mode, by calling it or ``call``; a failure is reported with its layer."""
    with annotate_forward_errors(model, example, "example_inputs"), torch.no_grad():
        return example.call(call or model)


@contextmanager
def annotate_forward_errors(model: nn.Module, example: ExampleInputs, name: str) -> Iterator[None]:
    """Add the layer and its inputs to the error of a network that fails inside the context."""
    running: list[nn.Module] = []
    try:
        with module_stack() as running:
            yield
    except Depl0Error:
        raise
    except Exception as error:
        layer = path_of(model, running)
        shapes = ", ".join(
            str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in example.leaves()
        )
        raise InputError(
            f"the network does not run on {name} ({shapes}): "
            f"{type(error).__name__} at {layer or type(model).__name__}: {first_line(error)}",
            hint="pass inputs of the shape, type and device that the network is trained with.",
        ) from error


def path_of(model: nn.Module, running: list[nn.Module]) -> str:
    """Return the path, in ``model``, of the innermost running module that belongs to it."""
    names = {module: name for name, module in model.named_modules()}
    return next((names[module] for module in reversed(running) if module in names), "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, because those of torch may be pages long."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Put networks in evaluation mode temporarily; afterwards the mode of every module is restored."""
    with modes_kept(*models):
        for model in models:
            model.eval()
        yield


@contextmanager
def modes_kept(*models: nn.Module) -> Iterator[None]:
    """Restore the mode of every module afterwards."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
