"""Isolation of the host: private copies, protection of the host while they run, and runs without side effects."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from depl0._util.process import ignored_warnings
from depl0._util.random import isolated_random
from depl0.errors import InputError
from depl0.host.calls import call_with
from depl0.host.inputs import ExampleInputs
from depl0.host.network import modes_kept, tied_names

SHARED_BYTES = 2**20
"""Smallest size of a parameter whose copies share its memory."""
_CONTAINERS = {dict, OrderedDict, list, set}  # hooks are in ordered dicts

# -- copies ------------------------------------------------------------------------------------------------------------


def isolated_deepcopy(model: nn.Module) -> nn.Module:
    """Copy the host, so that the analysis cannot modify it.

    Parameters share the memory of the original until either is written (:func:`lazy_copy`).
    Tensors that a network stores from its last pass (activations, attention maps) belong to an autograd graph that
    cannot be copied: the copy gets only their values.
    """
    try:
        with _disable_current_modes(), _DetachedCopies():  # other modes must not observe the creation of copies
            result = copy.deepcopy(model, _copied_parameters(model) | _empty_containers(model))
    except Exception as error:
        raise InputError(
            f"model cannot be copied: {error}",
            hint="copy.deepcopy(model) must work; a file, a lock or a generator among its attributes prevents it.",
        ) from error
    _check_shares_nothing(model, result)
    if result.training != model.training:  # copying an fx.GraphModule loses its mode and its attributes
        result.train(model.training)
    for original, module in zip(model.modules(), result.modules(), strict=True):
        module.training = original.training
    return result


def _copied_parameters(model: nn.Module) -> dict[int, Any]:
    """Return new parameters with the same values."""
    plain = [parameter for parameter in model.parameters() if type(parameter) is nn.Parameter and not vars(parameter)]
    return {id(p): nn.Parameter(lazy_copy(p), p.requires_grad) for p in plain}


def lazy_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor; the memory of a large one is copied only once either of both is written.

    >>> parameter = torch.zeros(2)
    >>> copied = lazy_copy(parameter)
    >>> copied.add_(1), parameter
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    if tensor.numel() * tensor.element_size() >= SHARED_BYTES:
        try:
            return torch._lazy_clone(tensor.detach())
        except RuntimeError:  # memory of another library, or shared between processes
            pass
    return tensor.detach().clone()


def own_memory(model: nn.Module) -> None:
    """Copy the memory that a network's parameters still share with others."""
    for parameter in model.parameters():
        if address_of(parameter):
            parameter.data_ptr()  # counts as a write


def _empty_containers(model: nn.Module) -> dict[int, Any]:
    """Return new containers for the empty ones among a network's attributes: most of the time is spent on its hooks."""
    values = [value for module in model.modules() for value in vars(module).values()]
    return {id(value): type(value)() for value in values if type(value) in _CONTAINERS and not value}


def _check_shares_nothing(model: nn.Module, result: nn.Module) -> None:
    """Raise an error if a copy shares state with the original, which changes to the copy would modify."""
    originals = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}
    parts = [*result.named_modules(), *result.named_parameters(), *result.named_buffers()]
    shared = next((name or "everything" for name, part in parts if id(part) in originals), None)
    if shared is not None:
        raise InputError(
            f"copy.deepcopy(model) must be independent of the model, but the copy shares {shared} with it.",
            hint="its class has a __deepcopy__ that returns the original, or parts of it.",
        )


class _DetachedCopies(TorchFunctionMode):
    """Copies tensors that were computed with gradients, which torch refuses to copy."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


# -- protection of the host --------------------------------------------------------------------------------------------

_HINT = (
    "a lambda, a hook or a weak reference in the network is bound to the original object: use a method, or the module "
    "that a hook is given as its first argument."
)


class _Reads(TorchDispatchMode):
    """Raises an error before an operator runs on a tensor of the host."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        named = [*host.named_parameters(), *host.named_buffers()]
        self.names = {address: name for name, tensor in named if (address := address_of(tensor))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((*args, *(kwargs or {}).values())):
            if (name := self.names.get(address_of(tensor))) is not None:
                raise InputError(
                    f"copy.deepcopy(model) must be independent of the model, but the copy uses {name} of the original.",
                    hint=_HINT,
                )
        return func(*args, **(kwargs or {}))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments; specialised for speed, because it runs at every operator."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def address_of(tensor: Tensor) -> int:
    """Return a number that identifies a tensor's memory; 0 if it has none. Lazy copies differ from their originals."""
    if isinstance(tensor, FakeTensor):  # has no memory, and catching an exception is slow
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # meta tensors and subclasses without their own memory
        return 0


class _Attributes:
    """The attributes of a network's modules, including hooks, so that a change can be detected and undone."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = [(module, dict(module.__dict__)) for module in model.modules()]
        values = [value for _, attributes in self._seen for value in attributes.values()]
        self._contents = [(v, v.copy() if v else None) for v in values if type(v) in _CONTAINERS]  # most are empty

    def restore(self) -> str | None:
        """Restore all attributes; return the name of one that had changed, or None."""
        changed: str | None = None
        for module, before in self._seen:
            now = module.__dict__
            if now.keys() != before.keys() or any(now[key] is not value for key, value in before.items()):
                keys = [k for k in {**before, **now} if now.get(k, self) is not before.get(k, self)]
                changed = changed or f"{type(module).__name__}.{keys[0]}"
                now.clear()
                now.update(before)
        for value, content in self._contents:
            if (value or content) and not _same(value, content or ()):
                changed = changed or f"a {type(value).__name__} of the network"
                value.clear()
                value.extend(content or ()) if isinstance(value, list) else value.update(content or ())
        return changed


def _same(left: Any, right: Any) -> bool:
    """Return True if two containers hold the same objects, in the same order."""
    if isinstance(left, set):
        return bool(left == right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(left[key] is right[key] for key in left)
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of a network's modules afterwards, for example caches with tensors of one precision."""
    attributes = _Attributes(model)
    try:
        yield
    finally:
        attributes.restore()


@contextmanager
def forbid_access_to(host: nn.Module) -> Iterator[None]:
    """Run copies of a host: any access to the host itself raises an error before it can change the host."""
    attributes = _Attributes(host)
    try:
        with _Reads(host), ignored_warnings():  # the host itself will raise them when it runs
            yield
    finally:
        changed = attributes.restore()
    if changed is not None:
        raise InputError(
            f"copy.deepcopy(model) must be independent of the model, but the copy writes into it ({changed}).",
            hint=_HINT,
        )


def run_host(host: nn.Module, case: ExampleInputs, overrides: Mapping[str, Tensor] | None = None) -> Any:
    """Run the host itself in evaluation mode; tensors, attributes, modes and random state do not change.

    It runs on copies of its parameters and buffers, because a network may modify them in forward or even in eval().
    """
    attributes = _Attributes(host)
    own = [*host.named_parameters(), *host.named_buffers()]
    tensors = {**{name: lazy_copy(tensor) for name, tensor in own}, **(overrides or {})}
    evaluated = _Evaluated(host)
    ties = {f"host.{name}": tuple(f"host.{o}" for o in others) for name, others in tied_names(host).items()}
    try:
        with torch.no_grad(), isolated_random(), modes_kept(host):
            named = {f"host.{name}": tensor for name, tensor in tensors.items()}
            return case.call(lambda *args, **kwargs: call_with(evaluated, named, args, kwargs, ties))
    finally:
        attributes.restore()


class _Evaluated(nn.Module):
    """Runs a network after eval(), with the tensors it has at that time."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.host.eval()(*args, **kwargs)
