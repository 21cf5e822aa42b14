"""What an exported ``model.py`` says besides the network's own code. It is copied out, so it needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConstantLayer(nn.Module):
    """A layer whose output does not depend on its input, because all channels that it read are gone."""

    def __init__(self, channels: int, spatial: list[list[int]] | None) -> None:
        super().__init__()
        self.spatial = spatial
        self.constant = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the constant in the shape that the layer would have given."""
        if self.spatial is None:
            return self.constant.to(x.dtype).expand(*x.shape[:-1], -1).clone()
        count = len(self.spatial)
        sizes = [
            (size + pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, (kernel, stride, pad, dilation) in zip(x.shape[-count:], self.spatial, strict=True)
        ]
        lead = x.shape[: -count - 1]
        return self.constant.to(x.dtype).view(-1, *[1] * count).expand(*lead, -1, *sizes).clone()


def replace(network: nn.Module, path: str, module: nn.Module) -> None:
    """Put another module in the place of one, under all of its names."""
    replaced = network.get_submodule(path)
    for name, found in list(network.named_modules(remove_duplicate=False)):
        if found is replaced:
            parent, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(parent), attribute, module)


def resize(network: nn.Module, shapes: dict[str, list[int]], attributes: dict[str, dict[str, int | list[int]]]) -> None:
    """Give tensors and layers the sizes that are left; tensors that are used twice stay the same ones."""
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for name, shape in shapes.items():
        path, _, attribute = name.rpartition(".")
        module = network.get_submodule(path)
        old = getattr(module, attribute)
        if list(old.shape) == shape:
            continue
        new = old.detach().new_zeros(shape)
        new = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
        setattr(module, attribute, made.setdefault(id(old), (old, new))[1])
    for path, values in attributes.items():
        for attribute, value in values.items():
            module = network.get_submodule(path)
            kind = type(getattr(module, attribute))
            setattr(module, attribute, kind(value))  # one number, or a list or tuple of them


def keep(network: nn.Module, positions: dict[str, dict[str, list[int]]]) -> None:
    """Cut buffers that no file holds: the network computes them when it is built."""
    for name, dims in positions.items():
        path, _, attribute = name.rpartition(".")
        module = network.get_submodule(path)
        value = getattr(module, attribute)
        for dim, kept in dims.items():
            value = value.index_select(int(dim), torch.tensor(kept))
        setattr(module, attribute, value)
