"""Count the parameters and multiply-accumulates of a network in its current state, grouped by the calling module.

The formulas are those of :mod:`torch.utils.flop_counter`; operators that it ignores have formulas here. A product with
parameters that is summed afterwards (``(x[:, None] * weight).sum(-1)``) counts as a matrix product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from depl0._util.process import exclusive, library_defaults, warn_caller
from depl0._util.random import isolated_random
from depl0.host.copies import address_of, forbid_access_to, isolated_deepcopy
from depl0.host.inputs import ExampleInputs
from depl0.host.network import annotate_forward_errors, check_host, module_stack


@dataclass(frozen=True)
class LayerCost:
    """The cost of one module, without its children."""

    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """Parameters and MACs: multiply-accumulates for one image, whatever the batch size of the example inputs."""

    params: int
    macs: int
    layers: Mapping[str, LayerCost] = field(default_factory=dict, repr=False)
    images: int = field(default=1, repr=False, compare=False)
    """Number of images in the example; 1 if its inputs are not a batch."""
    uncounted: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Operators that multiply an input by a parameter and whose MACs are unknown, each with its module."""

    def __str__(self) -> str:
        return f"{self.params:,} parameters, {self.macs:,} MACs"


@library_defaults()
def cost(model: nn.Module, example_inputs: Any) -> Cost:
    """Count the parameters and MACs of a network, in total and layer by layer, in evaluation mode.

    MACs are half of the count of :class:`torch.utils.flop_counter.FlopCounterMode`, plus operators that it ignores
    (:mod:`depl0.costs.count`). They are counted for one image of the batch; if the network does not run on one image
    alone, the MACs of every layer are divided by the number of images. A parameter that several modules share is
    counted once, for the first of them. Warns if a parameter is used by an operator whose MACs are unknown.

    Args:
        model: any network; it is not modified.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments for the network.

    Raises:
        InputError: the model is not a network, or does not run on the example.

    Example:
        >>> cost(nn.Linear(4, 3), torch.zeros(1, 4))
        Cost(params=15, macs=12)
        >>> cost(nn.Linear(4, 3), torch.zeros(8, 4))
        Cost(params=15, macs=12)
    """
    copy = isolated_deepcopy(check_host(model))
    with forbid_access_to(model):
        counted = cost_of_copy(copy, ExampleInputs.of(example_inputs))
    warn_of_uncounted(counted)
    return counted


def warn_of_uncounted(counted: Cost) -> None:
    """Warn if a network uses operators whose MACs are unknown."""
    if counted.uncounted:
        warn_caller(
            f"the MACs of these operators are not counted: {', '.join(counted.uncounted)}. A budget is a fraction of "
            "the MACs that are counted."
        )


def cost_of_copy(copy: nn.Module, example: ExampleInputs) -> Cost:
    """Count the cost of a network that is not used elsewhere."""
    with annotate_forward_errors(copy, example, "example_inputs"):
        return counted_run(copy, example)[0]


def counted_run(copy: nn.Module, example: ExampleInputs) -> tuple[Cost, Any]:
    """Count the cost of a network that is not used elsewhere; also return its outputs on the example."""
    trained = [parameter for parameter in copy.eval().parameters() if parameter.requires_grad]
    copy.requires_grad_(False)
    try:
        with exclusive(), torch.no_grad(), isolated_random(), _without_fused_layers(copy):
            own_macs, images, outputs, uncounted = _macs_of_one(copy, example)
    finally:
        for parameter in trained:
            parameter.requires_grad_()
    seen: set[int] = set()
    layers: dict[str, LayerCost] = {}
    for name, module in copy.named_modules():
        fresh = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(id(p) for p in fresh)
        layer = LayerCost(sum(p.numel() for p in fresh), own_macs.get(name, 0))
        if layer.params or layer.macs:
            layers[name] = layer
    total_params = sum(p.numel() for p in copy.parameters())
    return Cost(total_params, sum(own_macs.values()), layers, images, uncounted), outputs


def _macs_of_one(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], int, Any, tuple[str, ...]]:
    """Return every module's own MACs for one image, the number of images, the outputs, and the uncounted operators."""
    own_macs, outputs, uncounted = _counted(model, example)
    images = example.batch()
    others = frozenset(example.per_example()[1:])
    for one in (example.first(), replace(example, shared=others).first()) if images > 1 else ():
        try:
            of_one, _, _ = _counted(model, one)
        except Exception:  # the first dimension is not a batch, or a batch is required
            continue
        if {name: images * macs for name, macs in of_one.items()} == own_macs:
            return of_one, images, outputs, uncounted
    return own_macs, 1, outputs, uncounted


def _counted(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], Any, tuple[str, ...]]:
    with module_stack() as running, MacCounter(model, running) as counter:
        outputs = example.call(model)
    return dict(counter.macs), outputs, tuple(counter.uncounted)


@contextmanager
def _without_fused_layers(model: nn.Module) -> Iterator[None]:
    """Run transformer layers, attention and LSTMs step by step, because the counter cannot see inside fused kernels."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    fused = bool(torch._C._get_mkldnn_enabled()) and not any(isinstance(module, nn.LSTM) for module in model.modules())
    try:
        with torch.backends.mkldnn.flags(enabled=fused), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


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

_SUMS = {aten.sum, aten.mean}
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
        self._buffers = {address_of(buffer) for buffer in model.buffers()}
        self._running = running
        self._fixed: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self._written: set[int] = set()
        self._products: MutableMapping[Tensor, set[int]] = WeakTensorKeyDictionary()
        """Product with a parameter -> the dimensions along which the parameter varies."""

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
        self._note_fixed(func, args, kwargs, result)
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
            product, given = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            dims = range(product.dim()) if given in (None, []) else given if isinstance(given, Sequence) else [given]
            if self._products[product].intersection(dim % product.dim() for dim in dims):
                self._add(product.numel())
        own = [tensor for tensor in _tensors((args, kwargs)) if self._depends_on(tensor) is not None]
        weights = [tensor for tensor in own if self._depends_on(tensor)]
        others = [t for t in _tensors((args, kwargs)) if t.is_floating_point() and all(t is not each for each in own)]
        if not weights or not others:
            return
        if packet in _PRODUCTS:
            start = [(result.dim() - weight.dim(), weight.shape) for weight in weights]
            self._products[result] = {before + dim for before, sizes in start for dim, n in enumerate(sizes) if n > 1}
        elif not _is_free(func):
            self.uncounted[f"{func._schema.name.removeprefix('aten::')} ({self._module() or 'forward'})"] = None

    def _depends_on(self, tensor: Tensor) -> bool | None:
        """Return None for a tensor that depends on an input; else whether it depends on a parameter or is constant."""
        address = address_of(tensor)
        if address in self._parameters:
            return True
        if address in self._written:
            return None
        return False if address in self._buffers else self._fixed.get(tensor)

    def _note_fixed(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record results that no input has a part in, such as the triangle of a parameter."""
        found = [self._depends_on(tensor) for tensor in _tensors((args, kwargs))]
        if None not in found:
            for tensor in _tensors(result):
                self._fixed[tensor] = any(found)
        elif func._schema.is_mutable:
            self._written.update(address_of(tensor) for tensor in _tensors(args[:1]))


def _tensors(values: Any) -> list[Tensor]:
    """Return the tensors that have dimensions."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.dim()]


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
