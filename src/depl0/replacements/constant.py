"""Whole branches whose gates are all closed: their last layer becomes a constant.

If every input channel of a layer is closed, its output is its bias for any input: the layer becomes a constant, and the
following batch norm is folded into that constant. The layers that produced the closed channels are no longer needed:
they become a single channel of zeros. The host's class stays; only these submodules change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from depl0.analysis.propagate import Axis
from depl0.host.copies import isolated_deepcopy
from depl0.host.inputs import ExampleInputs
from depl0.host.network import module_stack, path_of
from depl0.replacements.base import Replacement, replace_module

if TYPE_CHECKING:
    from depl0.analysis.plan import Plan

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@final
class ConstantLayer(nn.Module):
    """A layer whose output does not depend on its input: one trainable number per output channel."""

    def __init__(self, channels: int, spatial: list[list[int]] | None) -> None:
        """``spatial`` has kernel, stride, padding and dilation of a convolution, for each dimension."""
        super().__init__()
        self.spatial = spatial
        self.constant = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the constant in the shape of the layer's output."""
        if self.spatial is None:
            return self.constant.to(x.dtype).expand(*x.shape[:-1], -1).clone()  # later layers may write in place
        count = len(self.spatial)
        sizes = [
            (size + pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, (kernel, stride, pad, dilation) in zip(x.shape[-count:], self.spatial, strict=True)
        ]
        lead = x.shape[: -count - 1]
        return self.constant.to(x.dtype).view(-1, *[1] * count).expand(*lead, -1, *sizes).clone()

    def extra_repr(self) -> str:
        """Return the number of channels for the module's ``repr``."""
        return f"{len(self.constant)}"


@dataclass(frozen=True)
class Removal:
    """A layer that is replaced: by a constant (with its batch norm folded in), or by one channel of zeros."""

    layer: str
    norm: str | None
    silent: bool


@final
class ConstantReplacement(Replacement):
    """A layer that closed gates have made constant. The gates determine it, not the analysis of the host."""

    spec: Removal
    kind: ClassVar[str] = "constant"
    spec_type: ClassVar[type] = Removal
    rank: ClassVar[int] = 2  # after all other kinds, on the remaining layers
    removes_layer: ClassVar[bool] = True

    def dense_names(self, path: str, name: str) -> list[str] | None:
        """Return the weight and statistics of the replaced layer and norm, from which a constant was computed."""
        if name != f"{path}.constant":
            return None
        names = [f"{path}.{vector}" for vector in ("weight", "bias")]
        norm = [f"{self.spec.norm}.{vector}" for vector in ("weight", "bias", "running_mean", "running_var")]
        return [*names, *(norm if self.spec.norm is not None else [])]

    @torch.no_grad()
    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace the layer in a model that has been folded and sliced."""
        layer = model.get_submodule(path)
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        constant = bias if isinstance(bias, Tensor) and not self.spec.silent else weight.new_zeros(len(weight))
        if self.spec.norm is not None:
            norm = model.get_submodule(self.spec.norm)
            assert isinstance(norm, _BatchNorm)
            constant = _through_norm(norm, constant)
            replace_module(model, self.spec.norm, nn.Identity())
        replaced = ConstantLayer(len(constant), _spatial(layer))
        trainable = weight.requires_grad and not self.spec.silent
        replaced.constant = nn.Parameter(constant.detach().clone(), requires_grad=trainable)
        replace_module(model, path, replaced)


def remove(model: nn.Module, removals: Sequence[Removal]) -> None:
    """Replace layers, in place, in a model that has been folded and sliced."""
    for removal in removals:
        ConstantReplacement(removal).cut(model, removal.layer, {})


def _spatial(layer: nn.Module) -> list[list[int]] | None:
    if not isinstance(layer, _ConvNd):
        return None
    return [list(sizes) for sizes in zip(layer.kernel_size, layer.stride, _padding(layer), layer.dilation, strict=True)]


def _padding(layer: _ConvNd) -> list[int]:
    """Return the padding of both ends together, for each spatial dimension."""
    if isinstance(layer.padding, str):
        reach = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        return reach if layer.padding == "same" else [0] * len(reach)
    return [2 * pad for pad in layer.padding]


def removable(plan: Plan, model: nn.Module, open_gates: Tensor) -> list[Removal]:
    """Find the layers that closed groups have made constant or useless."""
    modules = dict(model.named_modules())
    calls = Counter(use.layer for use in plan.uses)
    norms = Counter(plan.norm_after.values())
    removals = []
    for use in plan.uses:
        module = modules.get(use.layer)
        if calls[use.layer] != 1 or use.path != use.layer or type(module) not in _LAYERS:
            continue
        if use.in_axis is not None and _all_closed(plan, use.in_axis, open_gates):
            norm = plan.norm_after.get(use.layer)
            if norm is not None and (norms[norm] > 1 or not _can_be_folded(modules.get(norm))):
                norm = None
            removals.append(Removal(use.layer, norm, silent=False))
        elif _all_closed(plan, use.out_axis, open_gates):
            removals.append(Removal(use.layer, None, silent=True))
    return removals


def workable(compact: nn.Module, removals: Sequence[Removal], example: ExampleInputs) -> list[Removal]:
    """Return the removals with which a network still runs: some code reads a layer's weight instead of calling it."""
    left = list(removals)
    while left:
        candidate = isolated_deepcopy(compact).eval()
        remove(candidate, left)
        running: list[nn.Module] = []
        try:
            with torch.no_grad(), module_stack() as running:
                example.call(candidate)
            return left
        except Exception:
            inside = path_of(candidate, running)
            kept = [r for r in left if r.layer != inside and r.layer.rpartition(".")[0] != inside]
            left = kept if len(kept) < len(left) else []
    return left


def _can_be_folded(norm: nn.Module | None) -> bool:
    """Return True for a torch norm that has running statistics and no operation after its affine parameters."""
    return type(norm) in _NORMS and isinstance(norm, _BatchNorm) and norm.running_mean is not None


def _all_closed(plan: Plan, axis: tuple[str, int], open_gates: Tensor) -> bool:
    gates = plan.axes.get(axis)
    return gates is not None and bool((gates >= 0).all()) and not bool(open_gates[gates].any())


def _through_norm(norm: _BatchNorm, constant: Tensor) -> Tensor:
    assert norm.running_mean is not None and norm.running_var is not None
    scaled = (constant.double() - norm.running_mean.double()) / (norm.running_var.double() + norm.eps).sqrt()
    if norm.affine:
        scaled = scaled * norm.weight.double() + norm.bias.double()
    return scaled.to(constant.dtype)
