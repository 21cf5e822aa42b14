"""Tensor precision (float64 to compare networks, never half precision for gates), and constant tensors of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


def as_precise_as_possible(run: Callable[[torch.dtype | None], T]) -> tuple[T, torch.dtype | None]:
    """Run a function in float64, or in float32 if the network requires that internally.

    None means that the network is not converted, because it may mix several precisions.

    >>> as_precise_as_possible(lambda dtype: torch.ones(1, dtype=dtype) @ torch.ones(1))
    (tensor(1.), torch.float32)
    """
    for dtype in (torch.float64, torch.float32):
        try:
            return run(dtype), dtype
        except (RuntimeError, AssertionError, TypeError):
            continue
    return run(None), None


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert a floating-point tensor to a type.

    Other tensors are unchanged, and so are all tensors if the type is None. Complex tensors are converted to the
    complex type with parts of that type.

    >>> [cast(torch.zeros(1, dtype=d), torch.float64).dtype for d in (torch.float16, torch.cfloat, torch.int32)]
    [torch.float64, torch.complex128, torch.int32]
    """
    if dtype is not None and tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def out_of_half_precision(convert: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion that moves tensors as another one does, but never converts them to half precision.

    >>> [out_of_half_precision(to)(torch.zeros(1)).dtype for to in (Tensor.half, Tensor.double)]
    [torch.float32, torch.float64]
    """

    def keep_precision(tensor: Tensor) -> Tensor:
        moved = convert(tensor)
        return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

    return keep_precision


class ConstantTensors(nn.Module):
    """A module whose constants are plain attributes instead of buffers.

    They follow the module to its device. Unlike buffers, they are not broadcast in every step (DDP), not saved, and not
    averaged by a running mean, which would turn index 6 into 5.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, fn(value))
        return self
