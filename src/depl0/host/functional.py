"""Call a network with other tensors in place of its own, also where activation checkpointing runs parts of it again.

A part of the host that runs under ``torch.utils.checkpoint`` is run once more in the backward pass, when the host has
its own parameters back. It would see them without gates, and gradients would silently be wrong. So while a host that
uses checkpointing runs, what it hands to ``checkpoint`` is wrapped to see the gated parameters whenever it runs. With
any other host, ``torch.utils.checkpoint`` is left alone.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn

from depl0.errors import InputError
from depl0.host.network import tied_names


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ties: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Call a network with these tensors in place of its own.

    ``ties`` are the other names of its tensors (:func:`depl0.host.network.tied_names`), followed here because
    functional_call would leave its tensors behind in a module that has two names.
    """
    return torch.func.functional_call(model, _with_ties(model, tensors, ties), args, kwargs, tie_weights=False)


def _with_ties(
    model: nn.Module, tensors: Mapping[str, Tensor], ties: Mapping[str, tuple[str, ...]] | None
) -> dict[str, Tensor]:
    ties = tied_names(model) if ties is None else ties
    return {**{other: tensor for name, tensor in tensors.items() for other in ties.get(name, ())}, **tensors}


def call_gated(
    host: nn.Module,
    parameters: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ties: Mapping[str, tuple[str, ...]],
    checkpoints: bool = False,
) -> Any:
    """Call a network with these parameters in place of its own, also where parts of it are computed again later.

    ``checkpoints`` says that it is known to use activation checkpointing; else its classes tell whether it may.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # compiled graphs hold their parameters themselves
        return call_with(host, parameters, args, kwargs, ties)
    if not (checkpoints or _may_checkpoint(host)):
        return call_with(host, parameters, args, kwargs, ties)
    _check_owners(host, parameters)
    with _seen_again(host, _with_ties(host, parameters, ties)):
        return call_with(host, parameters, args, kwargs, ties)


def _check_owners(host: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Refuse a layer that was wrapped by itself: its wrapper shows its parameters, but takes no others for them."""
    for name in parameters:
        path, _, own = name.rpartition(".")
        if own not in (module := host.get_submodule(path))._parameters:
            raise InputError(
                f"{path} is wrapped in {type(module).__name__}, which hides its parameters from the gates.",
                hint="wrap the block around the layer instead of the layer itself.",
            )


def _may_checkpoint(host: nn.Module) -> bool:
    """Tell whether any module of a network may use checkpoints; asked at every step, as modules may be exchanged."""
    kinds: set[type] = set()
    stack: list[nn.Module | None] = [host]
    while stack:  # several times as fast as host.modules()
        module = stack.pop()
        if module is not None:
            kinds.add(type(module))
            stack.extend(module._modules.values())
    return any(_mentions_checkpoint(kind) for kind in kinds)


@lru_cache(maxsize=4096)
def _mentions_checkpoint(kind: type) -> bool:
    """Tell whether the methods of a class speak of checkpoints: then it may use them, now or when it is told to."""
    classes = [cls for cls in kind.__mro__ if not cls.__module__.startswith("torch.nn.") and cls is not object]
    codes = [code for cls in classes for member in vars(cls).values() if (code := _code(member)) is not None]
    while codes:
        code = codes.pop()
        if any("checkpoint" in name for name in (*code.co_names, *code.co_freevars, *code.co_varnames)):
            return True
        codes.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return False


def _code(member: object) -> CodeType | None:
    function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return getattr(inspect.unwrap(function), "__code__", None)


@contextmanager
def watch_checkpoints() -> Iterator[list[bool]]:
    """Note whether a network that runs inside uses activation checkpointing; the list is empty if it does not."""
    used: list[bool] = []
    with _intercepted():
        _running.watchers.append(used)
        try:
            yield used
        finally:
            _running.watchers.pop()


# -- standing between checkpoint and what it calls ---------------------------------------------------------------------

WITHOUT_REENTRANT, REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"
"""what ``torch.utils.checkpoint.checkpoint`` calls, under whatever name it was itself imported"""


class _Part(nn.Module):
    """A part of the host as a function, beside the host whose parameters are replaced while it runs."""

    def __init__(self, host: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.host, self._function = host, (function,)  # not as a module: its parameters would count twice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function[0](*args, **kwargs)


class _Running(threading.local):
    """What is under way in this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Mapping[str, Tensor]]] = []
        self.watchers: list[list[bool]] = []


_running = _Running()
_lock = threading.Lock()
_count = 0
_originals: dict[str, Any] = {}


@contextmanager
def _seen_again(host: nn.Module, parameters: Mapping[str, Tensor]) -> Iterator[None]:
    _running.calls.append((host, parameters))
    try:
        with _intercepted():
            yield
    finally:
        _running.calls.pop()


@contextmanager
def _intercepted() -> Iterator[None]:
    """Stand between ``checkpoint`` and what it calls, while any thread needs it."""
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            _originals.update({name: getattr(checkpointing, name) for name in (WITHOUT_REENTRANT, REENTRANT)})
            setattr(checkpointing, WITHOUT_REENTRANT, _without_reentrant)
            setattr(checkpointing, REENTRANT, _Reentrant)
    try:
        yield
    finally:
        with _lock:
            _count -= 1
            if _count == 0:
                for name, original in _originals.items():
                    setattr(checkpointing, name, original)


def _notice() -> None:
    for used in _running.watchers:
        used.append(True)


def _without_reentrant(function: Callable[..., Any], *rest: Any, **named: Any) -> Any:
    _notice()
    if _running.calls:
        host, parameters = _running.calls[-1]
        part = _Part(host, function)
        inside = {f"host.{name}": tensor for name, tensor in parameters.items()}

        def again(*args: Any, **kwargs: Any) -> Any:
            with _seen_again(host, parameters):  # a part may have checkpoints of its own
                return torch.func.functional_call(part, inside, args, kwargs, tie_weights=False)

        function = again
    return _originals[WITHOUT_REENTRANT](function, *rest, **named)


class _Reentrant:
    """Refuses, inside a gated network, the variant that starts a backward pass of its own for every part."""

    @staticmethod
    def apply(*args: Any) -> Any:
        _notice()
        if _running.calls:
            raise InputError(
                "the network uses activation checkpointing with use_reentrant=True, which does not see the gates.",
                hint="let it call torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
            )
        return _originals[REENTRANT].apply(*args)
