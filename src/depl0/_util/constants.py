"""Tensors that move with a module and are nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class ConstantTensors(nn.Module):
    """A module whose constants are plain attributes instead of buffers.

    They follow the module to its device. But nobody broadcasts them in every step (DDP), saves them, or takes a running
    mean of them, which would turn index 6 into 5.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, fn(value))
        return self
