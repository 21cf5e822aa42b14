"""A network built small from the start: what a compact network's speed is held against.

Every layer of the compact network is constructed anew with the widths it has, with random weights, as if somebody had
written the small network by hand. Nothing of the slicing is left in it.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from depl0._util.random import isolated_random
from depl0.host.copies import private_copy


def built_small(compact: nn.Module) -> nn.Module:
    """Return a network of the same class and widths whose convolutions, linear layers and batch norms are new."""
    copy = private_copy(compact)
    with isolated_random(0):
        for module in list(copy.modules()):
            for name, child in list(module.named_children()):
                new = _anew(child)
                if new is not None:
                    setattr(module, name, new.to(next(child.parameters()).device).train(child.training))
    return copy


def _anew(layer: nn.Module) -> nn.Module | None:
    if type(layer) is nn.Linear:
        return nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    if isinstance(layer, _BatchNorm) and layer.affine and type(layer).__module__.startswith("torch.nn."):
        return type(layer)(layer.num_features, layer.eps, layer.momentum)
    if isinstance(layer, _ConvNd) and not layer.transposed and type(layer).__module__.startswith("torch.nn."):
        kind: type[nn.Conv2d] = type(layer)  # type: ignore[assignment]
        return kind(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            layer.bias is not None,
            layer.padding_mode,
        )
    return None
