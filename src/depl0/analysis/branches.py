"""What one pass of a network asks about its inputs: conditions on sizes, indices into tables, the path it takes.

``if x.shape[0] > 16`` has another path for larger batches. Only what is run can be recorded and compared, and no
example takes every path. While an :class:`Observer` watches, the code is given sizes that are ordinary numbers but
note what they are compared with, wherever that happens: in a function of another module, with a limit from a settings
object, after some arithmetic. So inputs on the other side of a condition can be looked for
(:mod:`depl0.planning.sides`).
"""

from __future__ import annotations

import builtins
import linecache
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

_TORCH = str(Path(torch.__file__).parent)


class Place(NamedTuple):
    """A point in the code, and how often a pass had been there before."""

    code: CodeType
    instruction: int
    line: int
    times: int


class Size(NamedTuple):
    """A size that the code has read: where, and of which dimension (-1: the number of elements)."""

    place: Place
    dim: int


Formula: TypeAlias = Callable[[Mapping[Size, int]], Any]


@dataclass(frozen=True)
class Condition:
    """A condition on sizes that the code has asked for."""

    place: Place
    holds: Formula
    """whether it would hold for other sizes"""
    held: bool

    def __str__(self) -> str:
        code = self.place.code
        line = linecache.getline(code.co_filename, self.place.line).strip()
        return f"`{line}` ({Path(code.co_filename).name}:{self.place.line})"


class Observer(TorchFunctionMode):
    """Watches one pass of a network; its sizes only if it takes numbers that are not quite ``int``."""

    def __init__(self, sizes: bool = True) -> None:
        super().__init__()
        self._traces_sizes = sizes
        self.path: list[tuple[Any, ...]] = []
        """the functions of torch that are called, in order, and whose results or parameters each is given; sizes,
        indices and what counts batches do not matter, nor do the flags that tell norms and dropout their mode"""
        self._origins: MutableMapping[Tensor, tuple[int, int]] = WeakTensorKeyDictionary()
        self.conditions: list[Condition] = []
        self.sizes: dict[Size, int] = {}
        self.limits: dict[int, int] = {}
        """number of an input -> the values below which it is an index into some table"""
        self._inputs: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._times: Counter[tuple[CodeType, int]] = Counter()
        self._active = False

    @contextmanager
    def watching(self, inputs: Iterable[Tensor]) -> Iterator[None]:
        """Watch a pass on these inputs, which must be the very tensors that the network is given."""
        for number, tensor in enumerate(inputs):
            if not tensor.is_floating_point() and not tensor.is_complex():
                self._is_input(tensor, number)
        self._active = True
        try:
            with self, _traced_builtins(self):
                yield
        finally:
            self._active = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _READS:
            if isinstance(result, Tensor):  # x.T, say
                self._step(name, args[:1], result)
            return self._read(name, result, sys._getframe(1), args)
        if name not in _MODES:
            self._step(name, (args, {key: value for key, value in (kwargs or {}).items() if key != "training"}), result)
            if self._inputs:
                self._follow_indices(name, args, kwargs or {}, result)
        return result

    def asked_at(self) -> set[tuple[CodeType, int]]:
        """Return where in the code there were conditions on sizes."""
        return {condition.place[:2] for condition in self.conditions}

    # -- the path ------------------------------------------------------------------------------------------------------

    def end_path(self, outputs: Sequence[Tensor]) -> None:
        """Say what the network returns: some give more in training, without a call of any function."""
        self.path.append(("", *map(self._argument, outputs)))

    def _step(self, name: str, given: Any, result: Any) -> None:
        leaves = pytree.tree_leaves(given)
        if any(isinstance(leaf, Tensor) for leaf in leaves) and all(map(_counts, leaves)):
            return
        same_in_both_modes = name in _TOLD_THEIR_MODE
        self.path.append((name, *(self._argument(x) for x in leaves if not (same_in_both_modes and type(x) is bool))))
        for place, tensor in enumerate(pytree.tree_leaves(result)):
            if isinstance(tensor, Tensor):
                self._origins[tensor] = len(self.path), place

    def _argument(self, leaf: Any) -> Any:
        """Return what distinguishes an argument of a call: its value where that is no size."""
        if isinstance(leaf, Tensor):
            return leaf.dim(), self._origins.get(leaf) or (id(leaf) if isinstance(leaf, nn.Parameter) else None)
        is_value = isinstance(leaf, (float, str, bool)) and not isinstance(leaf, _TracedFloat)
        return leaf if is_value or leaf is None else type(leaf).__mro__[-2].__name__

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def _read(self, name: str, result: Any, frame: FrameType, args: tuple[Any, ...]) -> Any:
        if isinstance(result, torch.Size):
            return torch.Size([self.size(size, frame, dim) for dim, size in enumerate(result)])
        if type(result) is int and name != "__get__":  # of ndim, say
            return self.size(result, frame, args[1] % args[0].dim() if len(args) == 2 else -1)
        return result

    def size(self, value: int, frame: FrameType, dim: int) -> int:
        """Return a size as a number that notes what is done with it."""
        if not self._traces_sizes or frame.f_code.co_filename.startswith(_TORCH):
            return value
        size = Size(self._place(frame), dim)
        self.sizes[size] = value
        return _TracedInt(value, self, lambda sizes: sizes[size])

    def _place(self, frame: FrameType) -> Place:
        at = (frame.f_code, frame.f_lasti)
        self._times[at] += 1
        return Place(*at, frame.f_lineno, self._times[at])

    def ask(self, holds: Formula, held: bool, frame: FrameType) -> bool:
        """Note a condition on sizes; return whether it holds."""
        if self._active and not frame.f_code.co_filename.startswith(_TORCH):
            self.conditions.append(Condition(self._place(frame), holds, held))
        return held

    # -- indices -------------------------------------------------------------------------------------------------------

    def _is_input(self, tensor: Tensor, number: int) -> None:
        self._alive.append(tensor)  # else its memory might be that of another one later
        self._inputs[tensor.untyped_storage().data_ptr()] = number

    def _input(self, value: Any) -> int | None:
        is_index = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
        return self._inputs.get(value.untyped_storage().data_ptr()) if is_index else None

    def _follow_indices(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        if name in _SAME_VALUES and args and (number := self._input(args[0])) is not None and self._is_index(result):
            self._is_input(result, number)
        for index, limit in _indices(name, args, kwargs):
            if (number := self._input(index)) is not None:
                self.limits[number] = min(limit, self.limits.get(number, limit))

    @staticmethod
    def _is_index(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)


_READS = {"__get__", "size", "numel", "nelement", "__len__"}
_MODES = {"dim", "__repr__", "__hash__", "stride", "is_floating_point", "_set_grad_enabled", "_assert"}
_TOLD_THEIR_MODE = {
    "batch_norm", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu",
    "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
_SAME_VALUES = {"long", "int", "to", "type", "clone", "contiguous", "reshape", "flatten"}


def _indices(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Give the tensors with which a function looks something up, and how much there is to look up."""
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


def _counts(leaf: Any) -> bool:
    """Tell whether an argument is a number or a tensor of one whole number: of a counter of batches, say."""
    return leaf.dim() == 0 and not leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, int)


@contextmanager
def _traced_builtins(observer: Observer) -> Iterator[None]:
    """Let ``len`` and ``range`` take part: both make plain numbers of sizes. For all else they are what they were."""
    plain_len, plain_range = len, range

    def traced_len(value: Any) -> int:
        if isinstance(value, Tensor) and value.dim() > 0:
            return observer.size(plain_len(value), sys._getframe(1), 0)
        return plain_len(value)

    class Type(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, plain_range)

    class TracedRange(metaclass=Type):
        def __new__(cls, *bounds: Any) -> Any:
            steps = plain_range(*map(_plain, bounds))
            if any(isinstance(bound, _TracedInt) for bound in bounds):
                formulas, now = list(map(_formula, bounds)), plain_len(steps)
                for more in (operator.gt, operator.lt):  # a loop of more steps, and of fewer

                    def other(sizes: Mapping[Size, int], more: Callable[..., bool] = more) -> bool:
                        return more(plain_len(plain_range(*(formula(sizes) for formula in formulas))), now)

                    observer.ask(other, False, sys._getframe(1))
            return steps

    builtins.len, builtins.range = traced_len, TracedRange  # type: ignore[misc]
    try:
        yield
    finally:
        builtins.len, builtins.range = plain_len, plain_range  # type: ignore[misc]


# -- numbers that note what they are compared with ---------------------------------------------------------------------


def _plain(value: Any) -> Any:
    return value.plain if isinstance(value, (_TracedInt, _TracedFloat)) else value


def _formula(value: Any) -> Formula:
    return value.formula if isinstance(value, (_TracedInt, _TracedFloat)) else lambda _: value


def _computed(observer: Observer, function: Callable[..., Any], *operands: Any) -> Any:
    """Return the result of an operation as a number that remembers how it came about."""
    result = function(*map(_plain, operands))
    formulas = list(map(_formula, operands))
    kind = {int: _TracedInt, float: _TracedFloat}.get(type(result))
    if kind is None:
        return result
    return kind(result, observer, lambda sizes: function(*(formula(sizes) for formula in formulas)))


def _arithmetic(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, other: Any, *more: Any) -> Any:
        if more or not isinstance(other, (int, float)):
            return NotImplemented
        return _computed(self.observer, function, *((other, self) if reflected else (self, other)))

    return method


def _comparison(function: Callable[..., bool]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        mine, others = self.formula, _formula(other)
        held = function(self.plain, _plain(other))
        return self.observer.ask(lambda sizes: function(mine(sizes), others(sizes)), held, sys._getframe(1))

    return method


class _TracedInt(int):
    """A whole number that was made of sizes."""

    plain: int
    observer: Observer
    formula: Formula

    def __new__(cls, plain: int, observer: Observer, formula: Formula) -> _TracedInt:
        self = super().__new__(cls, plain)
        self.plain, self.observer, self.formula = plain, observer, formula
        return self

    def __reduce__(self) -> Any:
        return int, (self.plain,)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __bool__(self) -> bool:
        return self.observer.ask(lambda sizes: bool(self.formula(sizes)), bool(self.plain), sys._getframe(1))


class _TracedFloat(float):
    """A number that was made of sizes: a ratio, say."""

    plain: float
    observer: Observer
    formula: Formula

    def __new__(cls, plain: float, observer: Observer, formula: Formula) -> _TracedFloat:
        self = super().__new__(cls, plain)
        self.plain, self.observer, self.formula = plain, observer, formula
        return self

    def __reduce__(self) -> Any:
        return float, (self.plain,)

    def __hash__(self) -> int:
        return hash(self.plain)


def _of_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *digits: _computed(self.observer, function, self, *digits)


_ALONE: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}
for _kind in (_TracedInt, _TracedFloat):
    for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
        setattr(_kind, f"__{_name}__", _arithmetic(getattr(operator, _name)))
        setattr(_kind, f"__r{_name}__", _arithmetic(getattr(operator, _name), reflected=True))
    for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
    for _name, _function in _ALONE.items():
        setattr(_kind, f"__{_name}__", _of_itself(_function))
