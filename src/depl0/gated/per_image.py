"""Gates sampled for each image of a batch, as in the code of the paper's authors.

Gates that all images share multiply γ and β (:mod:`depl0.gates.scaling`). Gates for each image multiply the outputs of
the same layers, one broadcast over the batch for each layer: BN(x)·z with z of shape (batch, channels, 1, 1).
Every multiplication keeps one more feature map for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from depl0._util.random import isolated_random
from depl0._util.tensors import ConstantTensors
from depl0.analysis.plan import Plan
from depl0.errors import InputError
from depl0.host.calls import LAYERS, TRANSPOSED, seen_by_checkpoints
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode

_CHANNELS_SECOND = {"batch_norm", "group_norm", "instance_norm"}
_CHANNELS_LAST = {"linear", "layer_norm", "rms_norm"}
_HINT = "attach with draw='batch', or leave the layer's group out with groups=[…]."


def batch_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the number of images in the arguments of a call: the length of their first tensor."""
    tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim() > 0)
    first = next(tensors, None)
    if first is None:
        raise InputError("draw='image' needs a tensor among the inputs, got none.", hint="attach with draw='batch'.")
    return len(first)


class ImageGates(ConstantTensors):
    """Calls a host with a row of gates for each image, which multiply the outputs of the gated layers.

    Args:
        plan: the plan with the sites of the gates.
    """

    index: Tensor

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._axes = list(plan.sites)
        gates_at = [plan.uncut_sites[axis] if axis in plan.uncut_sites else plan.axes[axis] for axis in self._axes]
        self._sizes = [len(gates) for gates in gates_at]
        index = torch.cat(gates_at)
        self.index = torch.where(index < 0, plan.num_gates, index)  # a column of ones follows the gates

    def forward(self, host: nn.Module, gates: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the host; ``gates`` has the shape (images, gates).

        Raises:
            InputError: the host does not apply gates to the outputs of its layers, image by image.
        """
        columns = torch.cat([gates, gates.new_ones(len(gates), 1)], dim=1).index_select(1, self.index)
        factors = dict(zip(self._axes, columns.split(self._sizes, dim=1), strict=True))
        mode = _MultiplyOutputs({id(host.get_parameter(axis[0])): (axis, factor) for axis, factor in factors.items()})
        as_is = torch.compiler.is_compiling() or not torch.is_grad_enabled()
        with mode, nullcontext() if as_is else seen_by_checkpoints(host, None):
            outputs = host(*args, **kwargs)
        unused = [name for name, _ in self._axes if id(host.get_parameter(name)) not in mode.applied]
        if unused:
            raise InputError(f"draw='image' cannot gate {unused[0]}: no layer's output is its own.", hint=_HINT)
        return outputs


def check_image_gates(plan: Plan, host: nn.Module, example: ExampleInputs) -> None:
    """Raise InputError unless the host supports gates for each image; runs it once to check."""
    example = example.on_device_of(host)
    with evaluation_mode(host), torch.no_grad(), isolated_random():
        device = next(host.parameters()).device
        gates = torch.ones(batch_size(example.args, example.kwargs), plan.num_gates, device=device)
        ImageGates(plan).to(device)(host, gates, example.args, example.kwargs)


class _MultiplyOutputs(TorchFunctionMode):
    """Multiplies the outputs of layers, found by the identity of their weights."""

    def __init__(self, factors: dict[int, tuple[tuple[str, int], Tensor]]) -> None:
        super().__init__()
        self._factors = factors
        self.applied: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name not in LAYERS and name not in _CHANNELS_SECOND and name not in _CHANNELS_LAST:
            return result
        found = {id(value) for value in (*args, *kwargs.values())} & self._factors.keys()
        if not found:
            return result
        self.applied |= found
        weights = (self._factors[key] for key in found)
        (weight, dim), factor = max(weights, key=lambda site: site[0][0].endswith("weight"))
        channel = result.dim() - 1 if name in _CHANNELS_LAST else 1
        shape = [1] * result.dim()
        shape[0], shape[channel] = factor.shape
        if dim != (1 if name in TRANSPOSED else 0) or (len(result), result.shape[channel]) != tuple(factor.shape):
            raise InputError(f"draw='image' cannot gate {weight}: it is not applied image by image.", hint=_HINT)
        return result * factor.view(shape).to(result.dtype)
