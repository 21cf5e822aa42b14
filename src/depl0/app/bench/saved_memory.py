"""Counts the bytes that a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SavedBytes:
    """The memory that was kept, every storage once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, if it was not counted yet."""
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()

    def drop(self, tensor: Tensor) -> None:
        """Leave a tensor's storage out."""
        self._sizes.pop(tensor.untyped_storage().data_ptr(), None)

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(self._sizes.values())


@contextmanager
def counting_saved_bytes(network: nn.Module) -> Iterator[SavedBytes]:
    """Count what autograd saves; the network's own parameters and buffers are there anyway and do not count.

    Everything saved stays alive until the backward pass, so two storages never share an address. Scaled copies of
    parameters, as gates make them, are not the network's own and count.
    """
    saved = SavedBytes()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
    for own in (*network.parameters(), *network.buffers()):
        saved.drop(own)
