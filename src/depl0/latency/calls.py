"""The calls of convolutions and linear layers in one pass, with everything that is needed to repeat them smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depl0.analysis.propagate import LayerUse
from depl0.host.network import ExampleInputs, private_copy

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")

FUNCTIONS: dict[Any, tuple[str, ...]] = {
    F.conv1d: _CONVOLUTION,
    F.conv2d: _CONVOLUTION,
    F.conv3d: _CONVOLUTION,
    F.conv_transpose1d: _TRANSPOSED,
    F.conv_transpose2d: _TRANSPOSED,
    F.conv_transpose3d: _TRANSPOSED,
    F.linear: ("input", "weight", "bias"),
}
"""functions that layers call, with the names of their arguments"""


@dataclass(frozen=True)
class Call:
    """One call as it was made."""

    function: Callable[..., Tensor]
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    has_bias: bool
    settings: dict[str, Any]
    output_elements: int
    device: torch.device
    dtype: torch.dtype

    @property
    def groups(self) -> int:
        """Return the number of groups of a convolution."""
        return int(self.settings.get("groups", 1))

    def key(self) -> dict[str, Any]:
        """Return what the call is, as plain data."""
        return {
            "function": getattr(self.function, "__name__", str(self.function)),
            "input": list(self.input_shape),
            "weight": list(self.weight_shape),
            "bias": self.has_bias,
            "settings": {name: repr(value) for name, value in sorted(self.settings.items())},
            "dtype": str(self.dtype),
        }

    def smaller(self, use: LayerUse, out: int, into: int) -> Callable[[], Tensor]:
        """Return the same call with so many output and input channels, on random numbers.

        A grouped convolution that loses whole groups has the inputs that follow from ``out``.
        """
        input_shape, weight_shape, settings = list(self.input_shape), list(self.weight_shape), dict(self.settings)
        channel_dim = len(input_shape) - 1 if self.function is F.linear else 1
        if use.in_axis is None:
            groups = max(1, self.groups * out // use.out_size)
            settings["groups"] = groups
            weight_shape[use.out_axis[1]] = self.weight_shape[use.out_axis[1]] * groups // self.groups
            input_shape[channel_dim] = self.input_shape[channel_dim] * groups // self.groups
        else:
            weight_shape[use.out_axis[1]], weight_shape[use.in_axis[1]] = out, into
            input_shape[channel_dim] = into * use.groups
        transposed = FUNCTIONS[self.function] is _TRANSPOSED
        outputs = weight_shape[1] * settings.get("groups", 1) if transposed else weight_shape[0]
        rng = torch.Generator().manual_seed(0)
        x, weight, bias = (
            torch.randn(shape, generator=rng).to(self.device, self.dtype)
            for shape in (input_shape, weight_shape, [outputs])
        )
        return lambda: self.function(x, weight, bias if self.has_bias else None, **settings)


def record_calls(host: nn.Module, example: ExampleInputs) -> dict[str, list[Call]]:
    """Run a private copy of the host once, in evaluation mode; return the calls by the name of the weight, in order."""
    copy = private_copy(host).eval().requires_grad_(False)
    recorder = _Recorder({id(parameter): name for name, parameter in copy.named_parameters()})
    example = example.on_device_of(host)
    with torch.no_grad(), recorder:
        copy(*example.args, **example.kwargs)
    return recorder.calls


class _Recorder(TorchFunctionMode):
    """Looks at every call of a torch function, and lets it pass."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.calls: dict[str, list[Call]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in FUNCTIONS:
            given = {**dict(zip(FUNCTIONS[func], args, strict=False)), **(kwargs or {})}
            x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
            name = self.names.get(id(weight))
            batched = func is F.linear or x.dim() == weight.dim()
            if name is not None and batched:
                shapes = tuple(x.shape), tuple(weight.shape)
                call = Call(func, *shapes, bias is not None, given, result.numel(), x.device, x.dtype)
                self.calls.setdefault(name, []).append(call)
        return result
