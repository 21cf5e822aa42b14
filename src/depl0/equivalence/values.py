"""Sampled values for inputs other than the example: images at several scales, other tokens, masks with both values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from depl0.host.inputs import ExampleInputs

_BYTES = 255.0
_LARGEST_NUMBER = 1000
"""Upper bound for integers whose meaning is unknown, for example timesteps."""


@dataclass
class Draw:
    """Samples values for the inputs of an example: rows alternate between small and large values.

    A network may not accept every value: an integer may be an index, a floating-point number a class. Therefore the
    sampled range is chosen separately for both kinds.
    """

    limits: Sequence[int | None]
    """For each input tensor: the number of valid indices, if it is known to be an index."""
    floats: str = "wide"
    """"wide": normal, and uniform from 0 to 255; "normal"; "example": rows of the example in another order."""
    integers: str = "wide"
    """For integers and booleans. "wide": any; "near": those of the example if no limit is known, masks of both values;
    "example": unchanged."""
    _rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    _turn: int = 0

    def __call__(self, number: int, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of this shape for the input with this number."""
        if like.is_floating_point() or like.is_complex():
            drawn = self._floats(like, shape)
        elif like.dtype == torch.bool or self._is_mask(number, like):
            drawn = self._mask(like, shape)
        else:
            drawn = self._integers(self._limit(number, like), like, shape)
        return drawn.to(like.device, like.dtype)

    @property
    def is_last(self) -> bool:
        """Return True if only the example's own values are used."""
        return (self.floats, self.integers) == ("example", "example")

    def next_turn(self) -> None:
        """Swap the rows of small and large values."""
        self._turn += 1

    def _limit(self, number: int, like: Tensor) -> int | None:
        return 256 if like.dtype == torch.uint8 else self.limits[number] if number < len(self.limits) else None

    def _is_mask(self, number: int, like: Tensor) -> bool:
        in_rows = like.dim() > 1 and self._limit(number, like) is None
        return in_rows and bool(((like == 0) | (like == 1)).all())

    def _large(self, shape: tuple[int, ...]) -> Tensor:
        """Return a mask of the rows that get large values."""
        rows = torch.arange(self._turn, self._turn + (shape[0] if shape else 1)) % 2 == 1
        return rows.view(-1, *(1 for _ in shape[1:])) if shape else rows.view(())

    def _floats(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.floats == "example":
            tiled = _tiled(like, shape)
            if tiled.dim() == 0 or len(tiled) < 2:
                return tiled
            return tiled[torch.randperm(len(tiled), generator=self._rng).to(like.device)]
        normal = torch.randn(shape, generator=self._rng, dtype=torch.complex64 if like.is_complex() else None)
        if self.floats == "normal" or not shape:
            return normal
        return torch.where(self._large(shape), _BYTES * torch.rand(shape, generator=self._rng), normal)

    def _mask(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.integers == "example":
            return _tiled(like, shape)
        if not shape or shape[-1] < 2 or len(shape) == 1:
            return self._large(shape).expand(shape)
        mask = torch.rand(shape, generator=self._rng) < 0.5
        mask[..., 0], mask[..., -1] = True, False  # softmax needs a position to attend to, whatever True means
        return mask

    def _integers(self, limit: int | None, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if limit is not None and self.integers != "example":
            return torch.randint(limit, shape, generator=self._rng)
        if self.integers == "wide" and (like.device.type == "cpu" or not like.numel()):
            span = self._span(like)
            few = torch.randint(max(span // 10, 1), shape, generator=self._rng)
            return torch.where(self._large(shape), span - 1 - few, few)
        tiled = _tiled(like, shape)
        if self.integers == "example" or not tiled.numel():
            return tiled
        order = torch.randperm(tiled.numel(), generator=self._rng).to(like.device)
        return tiled.flatten()[order].view(tiled.shape)

    @staticmethod
    def _span(like: Tensor) -> int:
        largest = int(like.max()) if like.numel() else 0
        return min(max(_LARGEST_NUMBER, 2 * largest + 1), torch.iinfo(like.dtype).max)

    # -- descriptions --------------------------------------------------------------------------------------------------

    def describe(self, example: ExampleInputs) -> tuple[str, ...]:
        """Return a description of the sampled values for each input."""
        leaves = pytree.tree_leaves_with_path((example.args, example.kwargs))
        tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]
        return tuple(f"{_name(path)}: {self._words(n, leaf)}" for n, (path, leaf) in enumerate(tensors))

    def _words(self, number: int, like: Tensor) -> str:
        if like.is_floating_point() or like.is_complex():
            return {"wide": "normal, and 0 to 255", "normal": "normal", "example": "the example's rows"}[self.floats]
        if self.integers == "example":
            return "as in the example"
        if like.dtype == torch.bool or self._is_mask(number, like):
            return "both values"
        limit = self._limit(number, like)
        if limit is not None:
            return f"0 to {limit - 1}"
        wide = self.integers == "wide" and like.device.type == "cpu"
        return f"0 to {self._span(like) - 1}" if wide else "the example's in another order"


def draws(example: ExampleInputs, limits: Sequence[int | None]) -> Iterator[Draw]:
    """Yield samplers, from the widest range to the example's own values: the first one that runs is the best."""
    is_float = [tensor.is_floating_point() or tensor.is_complex() for tensor in example.tensors()]
    ways = [("wide", "wide"), ("wide", "near"), ("normal", "near"), ("normal", "example"), ("example", "example")]
    for floats, integers in dict.fromkeys(
        (floats if any(is_float) else "example", integers if not all(is_float) else "example")
        for floats, integers in ways
    ):
        yield Draw(limits, floats, integers)


def _name(path: tuple[object, ...]) -> str:
    """Return the name of an input: its keyword, or its position."""
    outer, *inner = path
    first = inner[0] if inner else outer
    name = first.key if isinstance(first, pytree.MappingKey) else f"input {getattr(first, 'idx', 0) + 1}"
    return f"{name}{pytree.keystr(tuple(inner[1:]))}"  # type: ignore[arg-type]


def _tiled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat and crop a tensor to a shape."""
    for dim, size in enumerate(shape):
        have = tensor.shape[dim]
        if have not in (0, size):
            tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % have)
    return tensor
