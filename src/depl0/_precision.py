"""Which precision tensors are in: float64 to compare networks, and never half precision for gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def as_precise_as_possible(run: Callable[[torch.dtype], T]) -> tuple[T, torch.dtype]:
    """Run something in float64, or in float32 where a network insists on that somewhere inside.

    >>> as_precise_as_possible(lambda dtype: torch.ones(1, dtype=dtype) @ torch.ones(1))
    (tensor(1.), torch.float32)
    """
    try:
        return run(torch.float64), torch.float64
    except RuntimeError:
        return run(torch.float32), torch.float32


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a tensor of floating-point numbers; others stay as they are, and all of them where no type is given."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def out_of_half_precision(convert: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion that moves tensors as another does, but does not follow it into half precision.

    >>> [out_of_half_precision(to)(torch.zeros(1)).dtype for to in (Tensor.half, Tensor.double)]
    [torch.float32, torch.float64]
    """

    def keep_precision(tensor: Tensor) -> Tensor:
        moved = convert(tensor)
        return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

    return keep_precision
