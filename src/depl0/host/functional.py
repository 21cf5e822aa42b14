"""Activation checkpointing inside the host: what the backward pass computes again has to see the same gates.

The host is called with gated parameters in place of its own, and has its own back when the call returns. A part of it
that runs under ``torch.utils.checkpoint`` is run once more in the backward pass, after that. It would see the
parameters without gates, and gradients would be wrong without a word. So while the host runs, what it hands to
``checkpoint`` is wrapped to see the gated parameters whenever it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn

from depl0.errors import InputError
from depl0.host.network import call_with

WITHOUT_REENTRANT, REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"
"""what ``torch.utils.checkpoint.checkpoint`` calls, under whatever name it was itself imported"""


def call_gated(
    host: nn.Module,
    parameters: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ties: Mapping[str, tuple[str, ...]],
) -> Any:
    """Call a network with some parameters in place of its own, also where parts of it are computed again later.

    ``ties`` are the other names of its tensors (:func:`depl0.host.network.tied_names`).
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # compiled graphs hold their parameters themselves
        return call_with(host, parameters, args, kwargs, ties)
    tied = {other: tensor for name, tensor in parameters.items() for other in ties.get(name, ())}
    with _seen_again(host, {**tied, **parameters}):
        return call_with(host, parameters, args, kwargs, ties)


class _Part(nn.Module):
    """A part of the host as a function, beside the host whose parameters are replaced while it runs."""

    def __init__(self, host: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.host, self._function = host, (function,)  # not as a module: its parameters would count twice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function[0](*args, **kwargs)


class _Running(threading.local):
    """The calls that are under way in this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Mapping[str, Tensor]]] = []


_running = _Running()
_lock = threading.Lock()
_count = 0
_originals: dict[str, Any] = {}


@contextmanager
def _seen_again(host: nn.Module, parameters: Mapping[str, Tensor]) -> Iterator[None]:
    _running.calls.append((host, parameters))
    _enter()
    try:
        yield
    finally:
        _leave()
        _running.calls.pop()


def _enter() -> None:
    """Stand between ``checkpoint`` and what it calls, while any thread runs a gated network."""
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            _originals.update({name: getattr(checkpointing, name) for name in (WITHOUT_REENTRANT, REENTRANT)})
            setattr(checkpointing, WITHOUT_REENTRANT, _without_reentrant)
            setattr(checkpointing, REENTRANT, _Reentrant)


def _leave() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            for name, original in _originals.items():
                setattr(checkpointing, name, original)


def _without_reentrant(function: Callable[..., Any], *rest: Any, **named: Any) -> Any:
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
        if _running.calls:
            raise InputError(
                "the network uses activation checkpointing with use_reentrant=True, which does not see the gates.",
                hint="let it call torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
            )
        return _originals[REENTRANT].apply(*args)
