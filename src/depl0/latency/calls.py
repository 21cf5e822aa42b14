"""The calls of convolutions and linear layers in one pass, with everything that is needed to repeat them smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.analysis.propagate import LayerUse
from depl0.host.calls import TRANSPOSED, CallRecorder
from depl0.host.calls import Call as HostCall
from depl0.host.copies import private_copy
from depl0.host.inputs import ExampleInputs


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
        transposed = self.function.__name__ in TRANSPOSED
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
    calls: dict[str, list[Call]] = {}

    def note(call: HostCall, result: Any) -> None:
        if call.weight is None:
            return
        given = call.arguments
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
        if call.name == "linear" or x.dim() == weight.dim():  # batched
            shapes = tuple(x.shape), tuple(weight.shape)
            seen = Call(call.function, *shapes, bias is not None, given, result.numel(), x.device, x.dtype)
            calls.setdefault(call.weight, []).append(seen)

    example = example.on_device_of(host)
    with torch.no_grad(), CallRecorder(copy, after=note):
        copy(*example.args, **example.kwargs)
    return calls
