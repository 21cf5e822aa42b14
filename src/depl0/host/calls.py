"""Observe a network's calls of torch functions, without hooks, and call it with other tensors in place of its own.

The functions that apply a layer's weight are recognised, with the name of the weight and their arguments by name:

    def show(call: Call, result: Any) -> None:
        if call.weight is not None:
            print(call.weight, call.name, tuple(call.arguments["input"].shape))

    with CallRecorder(network, after=show):
        network(x)

A part of a network that runs under ``torch.utils.checkpoint`` is run again in the backward pass, when the network has
its own parameters back. It would use them without gates, and gradients would silently be wrong. Therefore, while a
gated model runs, the functions that its host passes to ``checkpoint`` are wrapped so that they always use the gated
parameters. Other networks and threads use ``torch.utils.checkpoint`` unchanged.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from depl0.errors import InputError
from depl0.host.network import tied_names

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")

LAYERS: dict[str, tuple[str, ...]] = {
    **{f"conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    "linear": ("input", "weight", "bias"),
}
"""Functions that apply a layer's weight, and the names of their arguments."""

_BATCH_NORM = {
    True: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    False: ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}
"""Arguments of ``torch.nn.functional.batch_norm``, and of ``torch.batch_norm``."""

TRANSPOSED = {name for name, arguments in LAYERS.items() if arguments is _TRANSPOSED}
ADDITIONS = {"add", "__add__", "__radd__", "__iadd__", "add_"}


@final
@dataclass(frozen=True)
class Call:
    """One call of a torch function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    weight: str | None = None
    """For functions in ``LAYERS``: the name of the parameter that is applied."""

    @property
    def name(self) -> str:
        """The function's name: "conv2d", "relu", …"""
        return getattr(self.function, "__name__", "")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a function in ``LAYERS``, or of a batch norm, by name, as far as they were passed."""
        names = LAYERS.get(self.name) or _BATCH_NORM[self.function is functional.batch_norm]
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments that are tensors."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]


Before: TypeAlias = Callable[[Call], None]
After: TypeAlias = Callable[[Call, Any], None]


@final
class CallRecorder(TorchFunctionMode):
    """Reports all calls that are made while the context is active.

    Args:
        network: the network whose parameters are named.
        before: called with every :class:`Call` before it is made.
        after: called with every :class:`Call` and its result.
    """

    def __init__(self, network: nn.Module, *, before: Before | None = None, after: After | None = None) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in network.named_parameters()}
        self.before, self.after = before, after

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = Call(func, args, kwargs or {})
        if call.name in LAYERS:
            call = Call(func, args, call.kwargs, self._names.get(id(call.arguments.get("weight"))))
        if self.before is not None:
            self.before(call)
        result = func(*args, **call.kwargs)
        if self.after is not None:
            self.after(call, result)
        return result


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ties: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Call a network with these tensors in place of its own.

    ``ties`` are the other names of its tensors (:func:`depl0.host.network.tied_names`). They are resolved here because
    functional_call would not restore the tensors of a module that has two names.
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
) -> Any:
    """Call a network with these parameters in place of its own, including parts that are recomputed later."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # compiled graphs keep their own parameters
        return call_with(host, parameters, args, kwargs, ties)
    if "torch.distributed.algorithms._checkpoint.checkpoint_wrapper" in sys.modules:  # else there are no such wrappers
        _check_owners(host, parameters)
    with seen_by_checkpoints(host, _with_ties(host, parameters, ties)):
        return call_with(host, parameters, args, kwargs, ties)


def _check_owners(host: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Raise an error for a single layer in a wrapper that exposes its parameters but ignores replacements for them."""
    for name in parameters:
        path, _, own = name.rpartition(".")
        if own not in (module := host.get_submodule(path))._parameters:
            raise InputError(
                f"{path} is wrapped in {type(module).__name__}, which hides its parameters from the gates.",
                hint="wrap the block around the layer instead of the layer itself.",
            )


# -- interception of checkpoint ----------------------------------------------------------------------------------------

WITHOUT_REENTRANT, REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"
"""The functions that ``torch.utils.checkpoint.checkpoint`` calls, under any imported name."""


class _Part(nn.Module):
    """A part of the host as a function, beside the host whose parameters are replaced while it runs."""

    def __init__(self, host: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.host, self._function = host, (function,)  # not as a module, or its parameters would count twice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function[0](*args, **kwargs)


class _Running(threading.local):
    """The calls that are running in this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, Mapping[str, Tensor] | None]] = []
        """Each with its parameters; None if they cannot be replaced again in the backward pass."""


_running = _Running()
_lock = threading.Lock()
_count = 0
_originals: dict[str, Any] = {}


@contextmanager
def seen_by_checkpoints(host: nn.Module, parameters: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Make the parts that are recomputed later use these parameters. With None, such parts raise an error."""
    _running.calls.append((host, parameters))
    try:
        with _intercepted():
            yield
    finally:
        _running.calls.pop()


@contextmanager
def _intercepted() -> Iterator[None]:
    """Intercept the calls that ``checkpoint`` makes, while any thread needs it."""
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


def _without_reentrant(function: Callable[..., Any], *rest: Any, **named: Any) -> Any:
    if _running.calls:
        host, parameters = _running.calls[-1]
        if parameters is None:
            raise InputError(
                "draw='image' does not work with activation checkpointing, which runs layers again without gates.",
                hint="attach with draw='batch', or turn checkpointing off.",
            )
        part = _Part(host, function)
        inside = {f"host.{name}": tensor for name, tensor in parameters.items()}

        def again(*args: Any, **kwargs: Any) -> Any:
            with seen_by_checkpoints(host, parameters):  # a part may contain checkpoints itself
                return torch.func.functional_call(part, inside, args, kwargs, tie_weights=False)

        function = again
    return _originals[WITHOUT_REENTRANT](function, *rest, **named)


class _Reentrant:
    """Raises an error, inside a gated model, for the variant that starts a separate backward pass for every part."""

    @staticmethod
    def apply(*args: Any) -> Any:
        if _running.calls:
            raise InputError(
                "the network uses activation checkpointing with use_reentrant=True, which does not see the gates.",
                hint="call torch.utils.checkpoint.checkpoint(..., use_reentrant=False).",
            )
        return _originals[REENTRANT].apply(*args)
