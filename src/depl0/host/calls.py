"""Observe a network's calls of torch functions while it runs, without hooks or changes to the network.

The functions that apply a layer's weight are recognised, with the name of the weight and their arguments by name:

    def show(call: Call, result: Any) -> None:
        if call.weight is not None:
            print(call.weight, call.name, tuple(call.arguments["input"].shape))

    with CallRecorder(network, after=show):
        network(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

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
