"""Record the path of one pass of a network, and which of its inputs are indices into tables.

Two passes take the same path if they call the same torch functions in the same order on each other's results. The path
of a training pass is compared with that of an evaluation pass, and the paths on other inputs with that on the example.
Only passes with different paths must be recorded by ``torch.export``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from depl0.host.inputs import ExampleInputs, output_tensors


class PathRecorder(TorchFunctionMode):
    """Records the path of the passes that run in this thread while the context is active."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[tuple[Any, ...]] = []
        """Called torch functions in order, each with the origins of its arguments (earlier results or parameters).

        Sizes, indices and batch counters are omitted, and so are the flags that switch norms and dropout between modes.
        """
        self.limits: dict[int, int] = {}
        """Number of an input -> the size of the smallest table that it indexes."""
        self._origins: MutableMapping[Tensor, tuple[int, int]] = WeakTensorKeyDictionary()
        self._inputs: dict[int, int] = {}
        self._alive: list[Tensor] = []

    def run(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a network and return its outputs."""
        for number, tensor in enumerate(ExampleInputs(args, kwargs).tensors()):
            if not tensor.is_floating_point() and not tensor.is_complex():
                self._add_input(tensor, number)
        with self:
            outputs = model(*args, **kwargs)
        # Some networks return more tensors in training mode without calling any other function.
        self.path.append(("", *map(self._argument, output_tensors(outputs))))
        return outputs

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _READS:
            if isinstance(result, Tensor):  # for example x.T
                self._step(name, args[:1], result)
        elif name not in _IGNORED:
            named = {key: value for key, value in (kwargs or {}).items() if key != "training"}
            self._step(name, (args, named), result)
            if self._inputs:
                self._follow_indices(name, args, kwargs or {}, result)
        return result

    def _step(self, name: str, given: Any, result: Any) -> None:
        leaves = pytree.tree_leaves(given)
        if any(isinstance(leaf, Tensor) for leaf in leaves) and all(map(_is_counter, leaves)):
            return
        has_mode = name in _HAVE_A_MODE
        self.path.append((name, *(self._argument(x) for x in leaves if not (has_mode and type(x) is bool))))
        for place, tensor in enumerate(pytree.tree_leaves(result)):
            if isinstance(tensor, Tensor):
                self._origins[tensor] = len(self.path), place

    def _argument(self, leaf: Any) -> Any:
        """Return a key for an argument of a call: its origin, its value, or its type if it may be a size."""
        if isinstance(leaf, Tensor):
            return leaf.dim(), self._origins.get(leaf) or (id(leaf) if isinstance(leaf, nn.Parameter) else None)
        return leaf if isinstance(leaf, (float, str, bool)) or leaf is None else type(leaf).__name__

    # -- indices -------------------------------------------------------------------------------------------------------

    def _add_input(self, tensor: Tensor, number: int) -> None:
        self._alive.append(tensor)  # otherwise another tensor could get the same address later
        self._inputs[tensor.untyped_storage().data_ptr()] = number

    def _input(self, value: Any) -> int | None:
        is_index = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
        return self._inputs.get(value.untyped_storage().data_ptr()) if is_index else None

    def _follow_indices(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        stays_index = name in _SAME_VALUES and getattr(result, "dtype", None) in (torch.int64, torch.int32)
        if stays_index and args and (number := self._input(args[0])) is not None:
            self._add_input(result, number)
        for index, limit in _indices(name, args, kwargs):
            if (number := self._input(index)) is not None:
                self.limits[number] = min(limit, self.limits.get(number, limit))


_READS = {"__get__", "size", "numel", "nelement", "__len__"}
_IGNORED = {"dim", "__repr__", "__hash__", "stride", "is_floating_point", "_set_grad_enabled", "_assert"}
_HAVE_A_MODE = {
    "batch_norm", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu",
    "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
_SAME_VALUES = {"long", "int", "to", "type", "clone", "contiguous", "reshape", "flatten"}


def _indices(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Yield the index tensors of a lookup, each with the size of the table."""
    if name in ("embedding", "embedding_bag"):
        index, table, *_ = (*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs))
        tables = [table, index] if name == "embedding_bag" else [table]  # torch has both orders
        yield from ((i, t.shape[0]) for i, t in zip([index, table], tables, strict=False) if t.dim() == 2)
    elif name == "one_hot":
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        yield from [(args[0], classes)] if args and classes > 0 else []
    elif name == "index_select" and len(args) == 3:
        yield args[2], args[0].shape[args[1]]
    elif name == "__getitem__":
        given = args[1] if isinstance(args[1], tuple) else (args[1],)
        if all(isinstance(entry, (Tensor, slice, int)) for entry in given):  # one dimension each
            yield from ((index, args[0].shape[dim]) for dim, index in enumerate(given) if isinstance(index, Tensor))


def _is_counter(leaf: Any) -> bool:
    """Return True for a number or a tensor of one integer, such as a counter of batches."""
    return leaf.dim() == 0 and not leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, int)
