"""The user's network, as everything here handles it: what it is called with, copied, run and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from depl0.errors import Depl0Error, InputError
from depl0.host.module_copy import copied


@dataclass(frozen=True)
class ExampleInputs:
    """What the host is called with: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    others: tuple[ExampleInputs, ...] = ()
    """further examples, for a network that takes several kinds of inputs"""

    @classmethod
    def of(cls, inputs: object) -> ExampleInputs:
        """Accept a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of such examples."""
        if isinstance(inputs, ExampleInputs):
            return inputs
        if isinstance(inputs, list) and inputs:
            first, *others = [cls.of(example) for example in inputs]
            return cls(first.args, first.kwargs, tuple(others))
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
                f"got {type(inputs).__name__ if inputs != [] else 'an empty list'} instead.",
                hint="pass e.g. torch.randn(1, 3, 224, 224), or (x, mask) for a network with two inputs; "
                "a list of such examples is for a network that is called in several ways.",
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

    def batch(self) -> int:
        """Return the first dimension of the first tensor."""
        first = next(leaf for leaf in self.leaves() if isinstance(leaf, Tensor))
        return first.shape[0] if first.ndim else 1

    def first(self) -> ExampleInputs:
        """Return the first entry of every tensor that is as long as the batch."""
        batch = self.batch()
        return self.map_tensors(lambda tensor: tensor[:1] if tensor.ndim and tensor.shape[0] == batch else tensor)

    def map_tensors(self, function: Any) -> ExampleInputs:
        """Return the same structure with ``function`` applied to every tensor."""
        args, kwargs = pytree.tree_map(
            lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs)
        )
        return ExampleInputs(args, kwargs, tuple(other.map_tensors(function) for other in self.others))

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a network with copies of these inputs: it may write into what it is given."""
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs)
        )
        return function(*args, **kwargs)

    def like(self, other: ExampleInputs) -> ExampleInputs:
        """Return the same inputs in the precision of others."""
        dtypes = [leaf.dtype for leaf in other.leaves() if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return self.map_tensors(lambda t: t.to(dtypes[0]) if dtypes and t.is_floating_point() else t)

    def on_device_of(self, model: nn.Module) -> ExampleInputs:
        """Return the same inputs where the model's parameters are."""
        device = next(model.parameters()).device
        return self.map_tensors(lambda t: t.to(device))

    def twice(self) -> ExampleInputs:
        """Return a batch of two where every tensor is a batch of one (batch norm cannot train on one value)."""
        return self.map_tensors(lambda t: torch.cat([t, t]) if t.dim() > 0 and t.shape[0] == 1 else t)


def opened(outputs: Any) -> Any:
    """Return a network's outputs with dataclasses and other objects opened, so that the tensors in them are seen."""
    kind = type(outputs)
    if isinstance(outputs, (Tensor, str, bytes, int, float, complex, nn.Module)) or outputs is None:
        return outputs
    if isinstance(outputs, dict):
        return {str(key): opened(value) for key, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return [kind.__name__, *(opened(value) for value in outputs)]
    fields = _attributes(outputs)
    if not fields or callable(outputs):
        return outputs
    return {"": kind.__name__, **{str(key): opened(value) for key, value in fields.items()}}


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, those in slots too."""
    slots = [slot for cls in type(value).__mro__ for slot in _names(vars(cls).get("__slots__", ()))]
    found = {slot: getattr(value, slot) for slot in slots if slot != "__dict__" and hasattr(value, slot)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def opened_leaves(outputs: Any) -> list[Any]:
    """Return everything that a network's outputs hold."""
    return list(pytree.tree_leaves(opened(outputs)))


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
    _check_values(model)
    return model


def _check_values(model: nn.Module) -> None:
    """Refuse a network whose parameters have no values: nothing could be compared."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"{name} has no shape yet.", hint="run the network once, so that its lazy layers know their sizes."
            )
        if tensor.is_meta:
            raise InputError(
                f"{name} is on the meta device and has no values.",
                hint='give the network memory and weights: model.to_empty(device="cpu"), then load_state_dict.',
            )


def private_copy(model: nn.Module) -> nn.Module:
    """Copy the host, so that nothing the analysis does can reach it.

    What a network keeps of its last pass (activations, attention maps) belongs to a graph that cannot be copied: the
    copy gets the values alone.
    """
    try:
        with _disable_current_modes():  # whoever watches copies at work need not see how they are made
            values = {id(tensor): tensor.detach().clone() for tensor in _computed_tensors(model)}
            result: nn.Module = copied(model, values)
    except Exception as error:
        raise InputError(
            f"model cannot be copied: {error}",
            hint="copy.deepcopy(model) must work; a file, a lock or a generator among its attributes prevents it.",
        ) from error
    _check_shares_nothing(model, result)
    if result.training != model.training:  # a copied fx.GraphModule has forgotten its mode, and what hangs on it
        result.train(model.training)
    for original, module in zip(model.modules(), result.modules(), strict=True):
        module.training = original.training
    return result


def _check_shares_nothing(model: nn.Module, copied: nn.Module) -> None:
    """Refuse a copy that is not one: whatever is done to it would be done to the original."""
    originals = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}
    parts = [*copied.named_modules(), *copied.named_parameters(), *copied.named_buffers()]
    shared = next((name or "everything" for name, part in parts if id(part) in originals), None)
    if shared is not None:
        raise InputError(
            f"a copy of the network shares {shared} with it, so nothing can be tried without touching it.",
            hint="its class has a __deepcopy__ that gives back the original: copy.deepcopy(model) must be independent.",
        )


def _computed_tensors(model: nn.Module) -> list[Tensor]:
    """Return the tensors among a network's attributes that are results of a computation with gradients."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack: list[Any] = [value for module in model.modules() for value in vars(module).values()]
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            if not value.is_leaf:
                found[id(value)] = value
        elif id(value) not in seen and not isinstance(value, (str, bytes, int, float, type, nn.Module)):
            seen.add(id(value))
            if isinstance(value, dict):
                stack.extend(value.values())
            elif isinstance(value, (list, tuple, set)):
                stack.extend(value)
            elif hasattr(value, "__dict__") and not callable(value):
                stack.extend(vars(value).values())
    return list(found.values())


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Map every name of every parameter and buffer to the first name of the same tensor (tied parameters)."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            names[name] = first.setdefault(id(tensor), name)
    return names


def tied_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the other names of tensors that several modules hold; a module counts once, whatever its own names."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, tensor in [*module.named_parameters(path, False), *module.named_buffers(path, False)]:
            names.setdefault(id(tensor), []).append(name)
    return {name: tuple(o for o in same if o != name) for same in names.values() if len(same) > 1 for name in same}


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ties: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Call a network with these tensors in place of its own.

    Ties are followed here: functional_call would leave its tensors behind in a module that has two names.
    """
    ties = tied_names(model) if ties is None else ties
    tied = {other: tensor for name, tensor in tensors.items() for other in ties.get(name, ())}
    return torch.func.functional_call(model, {**tied, **tensors}, args, kwargs, tie_weights=False)


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


def run_checked(model: nn.Module, example: ExampleInputs) -> Any:
    """Run the network once, in its present mode; a failure says in which layer."""
    running: list[nn.Module] = []
    try:
        with module_stack() as running, torch.no_grad():
            return example.call(model)
    except Depl0Error:
        raise
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: those of torch run over pages."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Put networks in evaluation mode for a while; every module's own mode comes back."""
    with modes_kept(*models):
        for model in models:
            model.eval()
        yield


@contextmanager
def modes_kept(*models: nn.Module) -> Iterator[None]:
    """Give every module its own mode back in the end."""
    modes = {module: module.training for model in models for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
