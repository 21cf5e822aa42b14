"""Labels of channels, and the values that the analysis assigns to tensors.

Every channel of every tensor has an integer label. A union-find joins the labels of channels that can only be removed
together. A label may be unprunable: its channel can never be removed, for a recorded reason.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Reason:
    """The reason why a channel is unprunable: the operation on it, and its layer."""

    text: str
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.text} (at {self.layer})" if self.layer else self.text


class Labels:
    """Labels in a union-find.

    The root of a class is its earliest label, so classes are sorted by order of execution.
    """

    def __init__(self) -> None:
        self._parent = np.arange(1024)  # doubled when needed; only the first labels exist
        self._count = 0
        self._unprunable: dict[int, Reason] = {}
        self._mint_starts: list[int] = []
        self._mint_owners: list[str] = []

    def mint(self, count: int, owner: str) -> Tensor:
        """Return ``count`` new labels that belong to the layer ``owner``."""
        start, self._count = self._count, self._count + count
        if self._count > len(self._parent):
            self._parent = np.concatenate([self._parent, np.arange(len(self._parent), 2 * self._count)])
        self._mint_starts.append(start)
        self._mint_owners.append(owner)
        return torch.arange(start, start + count)

    def mint_unprunable(self, count: int, reason: Reason) -> Tensor:
        """Return one new unprunable label, repeated ``count`` times."""
        label = self.mint(1, "")
        self.mark_unprunable(label, reason)
        return label.expand(count)

    def roots(self, labels: Tensor) -> Tensor:
        """Return the root of every one of these labels."""
        return torch.from_numpy(self._roots(labels.numpy()))

    def _roots(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        roots = self._parent[labels]
        while not np.array_equal(roots, above := self._parent[roots]):
            roots = above
        self._parent[labels] = roots
        return roots

    def all_roots(self) -> Tensor:
        """Return the root of every label that exists."""
        return self.roots(torch.arange(self._count))

    def join(self, left: Tensor, right: Tensor) -> bool:
        """Join ``left[i]`` and ``right[i]``, which are one channel, for every i; return True if any were separate."""
        joined = False
        while left is not right:
            a, b = self._roots(left.numpy()), self._roots(right.numpy())
            separate = a != b
            if not separate.any():
                break
            joined, a, b = True, a[separate], b[separate]
            children = np.maximum(a, b)
            np.minimum.at(self._parent, children, np.minimum(a, b))
            for child in self._unprunable.keys() & set(children.tolist()):
                self._unprunable.setdefault(self._find(child), self._unprunable.pop(child))
        return joined

    def join_rows(self, rows: Tensor) -> None:
        """Join the channels in each column of a matrix of labels."""
        self.join(rows[:1].expand_as(rows).flatten(), rows.flatten())

    def mark_unprunable(self, labels: Tensor, reason: Reason) -> None:
        """Mark channels that can never be removed. If there are several reasons, the first one is kept."""
        for root in self.roots(labels).unique().tolist():
            self._unprunable.setdefault(root, reason)

    def reason(self, label: int) -> Reason | None:
        """Return the reason why a label is unprunable, or None if it is prunable."""
        return self._unprunable.get(self._find(label))

    def _find(self, label: int) -> int:
        while (above := int(self._parent[label])) != label:
            label = above
        return label

    def owner(self, label: int) -> str:
        """Return the layer that minted a label."""
        return self._mint_owners[bisect_right(self._mint_starts, label) - 1]


# -- values of tensors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Channels:
    """A tensor with one channel dimension, of at least two channels, each with a label."""

    dim: int
    labels: Tensor  # (channels,)

    def full(self, shape: tuple[int, ...]) -> Tensor:
        """Return the labels as a tensor of the value's shape, to which operators that move data can be applied."""
        view = [1] * len(shape)
        view[self.dim] = len(self.labels)
        return self.labels.view(view).expand(shape)


@dataclass(frozen=True)
class Opaque:
    """A tensor without removable channels, with the reason."""

    reason: Reason


@dataclass(frozen=True)
class Stored:
    """A parameter or buffer, possibly a vector that was reshaped or cast."""

    name: str


@dataclass(frozen=True)
class Derived:
    """A vector computed from stored vectors, position by position, such as the scale of a custom norm."""

    axes: tuple[tuple[str, int, int], ...]
    """(name, dimension, number of dimensions) of each stored tensor it is computed from."""


Value: TypeAlias = "Channels | Opaque | Stored | Derived | list[Channels | Opaque] | None"


def varying_dims(full: Tensor) -> list[int]:
    """Return the dimensions along which a label tensor is not constant."""
    return [
        dim
        for dim in range(full.dim())
        if full.shape[dim] > 1
        and full.stride(dim) != 0
        and not torch.equal(full, full.narrow(dim, 0, 1).expand_as(full))
    ]


def labels_along(full: Tensor, dim: int) -> Tensor:
    """Return the labels along the one varying dimension of a label tensor."""
    index = [0] * full.dim()
    return full[tuple(slice(None) if d == dim else index[d] for d in range(full.dim()))].clone()
