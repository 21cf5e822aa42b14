"""What the analysis knows of a tensor in the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from depl0.analysis.labels import Reason


@dataclass(frozen=True)
class Channels:
    """A tensor with one channel dimension, of at least two channels, each with its label."""

    dim: int
    labels: Tensor  # (channels,)

    def full(self, shape: tuple[int, ...]) -> Tensor:
        """Return the labels as a tensor of the value's shape, so that operators that move data can move them."""
        view = [1] * len(shape)
        view[self.dim] = len(self.labels)
        return self.labels.view(view).expand(shape)


@dataclass(frozen=True)
class Opaque:
    """A tensor without removable channels, and why."""

    reason: Reason


@dataclass(frozen=True)
class Stored:
    """A parameter or buffer, possibly a vector that was reshaped or cast."""

    name: str


@dataclass(frozen=True)
class Derived:
    """A vector computed from stored vectors, position by position: the scale of a norm that is written by hand."""

    axes: tuple[tuple[str, int, int], ...]
    """(name, dimension, number of dimensions) of each stored tensor that goes into it"""


@dataclass(frozen=True)
class Normed:
    """A stored weight at a length of its own: g·v/‖v‖, the length taken over all dimensions but one (weight norm).

    A standardised weight (`_standardised.py`) is of the same kind.
    """

    name: str
    """of v"""
    length: str | None
    """of g, the lengths; None where they are all one"""
    dim: int
    """the dimension along which there are several lengths"""


Value: TypeAlias = "Channels | Opaque | Stored | Derived | Normed | list[Channels | Opaque] | None"


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
