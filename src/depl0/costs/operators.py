"""Count the multiply-accumulates of every executed operator, grouped by the calling module.

The formulas are those of :mod:`torch.utils.flop_counter`; operators that it ignores have formulas here. A product with
a matrix of parameters that is summed afterwards (``(x[:, None] * weight).sum(-1)``) counts as a matrix product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from depl0.host.copies import address_of

aten = torch.ops.aten


def _of_grouped_product(rows: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    """Return the MACs of a product in which each group of rows (or of columns) has its own matrix."""
    every = rows.numel() * weight.shape[-1]
    return every // rows.shape[0] if (rows.dim(), weight.dim()) == (3, 2) else every


def _of_trilinear(left: Tensor, weight: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """Return the MACs of ``x @ W[o] @ y`` for every output o: the product with one vector, then with the other."""
    (outputs, inputs, others), rows = weight.shape[-3:], left.numel() // left.shape[-1]
    return rows * outputs * (inputs * others + inputs)


def _of_distances(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    return left.numel() * right.shape[-2]


FORMULAS: dict[Any, Callable[..., int]] = {
    aten._grouped_mm: _of_grouped_product,
    aten._trilinear: _of_trilinear,
    aten.mv: lambda matrix, vector: matrix.numel(),
    aten.addmv: lambda bias, matrix, vector, **_: matrix.numel(),
    aten.dot: lambda left, right: left.numel(),
    aten.vdot: lambda left, right: left.numel(),
    aten.addbmm: lambda bias, left, right, **_: left.numel() * right.shape[-1],
    aten.conv_tbc: lambda x, weight, *_, **__: x.shape[0] * x.shape[1] * weight.numel(),
    aten._cdist_forward: _of_distances,
    aten._euclidean_dist: _of_distances,
}
"""Operators that torch's counter ignores, with the formula for their MACs."""

_SUMS = {aten.sum}
_PRODUCTS = {aten.mul, aten.mul_}
_MOVES = {
    "cat", "stack", "copy", "copy_", "index_put", "index_put_", "where", "masked_scatter", "_prelu_kernel", "prelu",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "slice_scatter", "select_scatter", "rrelu_with_noise",
}  # fmt: skip
"""Operators with a parameter and an input that multiply at most position by position."""


@final
class MacCounter(TorchDispatchMode):
    """Counts the MACs of the operators that run in this thread while the context is active."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, running: Sequence[nn.Module]) -> None:
        """Set up the counter; ``running`` are the modules that are currently executed, the innermost last."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs: Counter[str] = Counter()
        """Path of a module -> the MACs of the operators that it calls itself."""
        self.uncounted: dict[str, None] = {}
        self._names: Mapping[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._parameters = {address_of(parameter) for parameter in model.parameters() if parameter.numel() > 1}
        self._running = running
        self._products = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.higher_order.cond:
            chosen, if_true, if_false, operands = args
            with self:
                return (if_true if chosen else if_false)(*operands)
        if isinstance(func, torch._ops.HigherOrderOperator) or func in _QUERIES:
            return NotImplemented
        packet = func.overloadpacket
        if packet not in FORMULAS and packet not in flop_registry:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if packet in FORMULAS:
            self._add(FORMULAS[packet](*args, **kwargs))
        elif packet in flop_registry:
            self._add(flop_registry[packet](*args, **kwargs, out_val=result) // 2)
        else:
            self._look(func, args, kwargs, result)
        return result

    def _module(self) -> str:
        return next((self._names[module] for module in reversed(self._running) if module in self._names), "")

    def _add(self, macs: int) -> None:
        self.macs[self._module()] += macs

    def _look(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count a product that is summed; record an operator that combines an input with a parameter in another way."""
        packet = func.overloadpacket
        if packet in _SUMS and args[0] in self._products:
            self._add(args[0].numel())
        found = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        own = [tensor for tensor in found if address_of(tensor) in self._parameters]
        others = [t for t in found if t.is_floating_point() and t.dim() and all(t is not tensor for tensor in own)]
        if not own or not others:
            return
        if packet in _PRODUCTS:
            if any(sum(size > 1 for size in tensor.shape) > 1 for tensor in own):
                self._products[result] = True
        elif not _is_free(func):
            self.uncounted[f"{func._schema.name.removeprefix('aten::')} ({self._module() or 'forward'})"] = None


_QUERIES = {
    aten.sym_is_contiguous.default, aten.is_contiguous.default, aten.is_contiguous.memory_format,
    aten.is_strides_like_format.default, aten.is_non_overlapping_and_dense.default, aten.size.default,
    aten.sym_size.default, aten.stride.default, aten.sym_stride.default, aten.storage_offset.default,
    aten.sym_storage_offset.default, aten.numel.default, aten.sym_numel.default, aten.dim.default,
    torch.ops.prim.layout.default,
}  # fmt: skip


def _is_free(func: Any) -> bool:
    """Return True for operators that multiply at most position by position, and for norms."""
    name = func._schema.name.removeprefix("aten::")
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return torch.Tag.pointwise in func.tags or is_view or name in _MOVES or "norm" in name
