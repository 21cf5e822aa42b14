"""The host is never touched: copies are watched while they run, and the host itself runs without leaving a trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from depl0.errors import InputError
from depl0.host.network import ExampleInputs, call_with, modes_kept, tied_names

_HINT = (
    "a lambda, a hook or a weak reference in the network is bound to the original object: use a method, or the module "
    "that a hook is given as its first argument."
)


class _Reads(TorchDispatchMode):
    """Refuses, before it is carried out, every operator that is given a tensor of the host."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        named = [*host.named_parameters(), *host.named_buffers()]
        self.names = {address: name for name, tensor in named if (address := _address(tensor))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((*args, *(kwargs or {}).values())):
            if (name := self.names.get(_address(tensor))) is not None:
                raise InputError(
                    f"a copy of the network still uses {name} of the original, so nothing can be tried without "
                    "touching it.",
                    hint=_HINT,
                )
        return func(*args, **(kwargs or {}))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Give the tensors among an operator's arguments; a walk of its own, because it is taken at every operator."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _address(tensor: Tensor) -> int:
    if isinstance(tensor, FakeTensor):  # has no memory, and an exception takes its time
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # meta tensors and subclasses without memory of their own
        return 0


class _Attributes:
    """What the modules of a network have as attributes: enough to see a change and to undo it."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = [(module, dict(module.__dict__)) for module in model.modules()]
        values = [value for _, attributes in self._seen for value in attributes.values()]
        self._contents = [(value, content) for value in values if (content := _content(value)) is not None]

    def restore(self) -> str | None:
        """Put everything back; return the name of an attribute that had changed."""
        changed: str | None = None
        for module, before in self._seen:
            now = module.__dict__
            if now.keys() != before.keys() or any(now[key] is not value for key, value in before.items()):
                keys = [k for k in {**before, **now} if now.get(k, self) is not before.get(k, self)]
                changed = changed or f"{type(module).__name__}.{keys[0]}"
                now.clear()
                now.update(before)
        for value, (kind, content) in self._contents:
            if _content(value) is None or not _same(_content(value)[1], content):  # type: ignore[index]
                changed = changed or f"a {kind} of the network"
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)
        return changed


def _content(value: object) -> tuple[str, Any] | None:
    return (type(value).__name__, value.copy()) if type(value) in (list, dict) else None  # type: ignore[attr-defined]


def _same(left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(left[key] is right[key] for key in left)
    return all(a is b for a, b in zip(left, right, strict=True))


@contextmanager
def untouched(host: nn.Module) -> Iterator[None]:
    """Run copies of a host: whatever reaches the host itself is refused before it can change anything there."""
    attributes = _Attributes(host)
    try:
        with _Reads(host), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a copy warns of, the host will say in its turn
            yield
    finally:
        changed = attributes.restore()
    if changed is not None:
        raise InputError(
            f"a copy of the network writes into the original ({changed}), so nothing can be tried without touching it.",
            hint=_HINT,
        )


def run_host(host: nn.Module, case: ExampleInputs, overrides: Mapping[str, Tensor] | None = None) -> Any:
    """Run the host itself in evaluation mode; tensors, attributes, modes and random state stay what they were.

    It runs on copies of its parameters and buffers: a network may write into them, in forward or in eval() itself.
    """
    attributes = _Attributes(host)
    own = [*host.named_parameters(), *host.named_buffers()]
    tensors = {**{name: tensor.detach().clone() for name, tensor in own}, **(overrides or {})}
    evaluated = _Evaluated(host)
    ties = {f"host.{name}": tuple(f"host.{o}" for o in others) for name, others in tied_names(host).items()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), modes_kept(host):
            named = {f"host.{name}": tensor for name, tensor in tensors.items()}
            return case.call(lambda *args, **kwargs: call_with(evaluated, named, args, kwargs, ties))
    finally:
        attributes.restore()


class _Evaluated(nn.Module):
    """Runs a network after eval(), with whatever tensors it has at that moment."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.host.eval()(*args, **kwargs)
