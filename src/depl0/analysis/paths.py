"""Which way a network goes through its own code: a branch on shapes or arguments takes another."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class Path(TorchFunctionMode):
    """Writes down the functions of torch that are called, in order; sizes and indices do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name not in {
            "__get__",
            "size",
            "dim",
            "__repr__",
            "__hash__",
            "numel",
            "stride",
            "is_floating_point",
            "_set_grad_enabled",
        }:
            self.steps.append((name, *(_kind(leaf) for leaf in pytree.tree_leaves((args, kwargs)))))
        return func(*args, **kwargs)


def _kind(leaf: Any) -> Any:
    """Return what distinguishes an argument: its value where that is no size."""
    if isinstance(leaf, Tensor):
        return leaf.dim()
    return leaf if isinstance(leaf, (float, str, bool)) or leaf is None else type(leaf).__name__
