"""What an exported ``model.py`` says besides the network's own code. It is copied out, so it needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
