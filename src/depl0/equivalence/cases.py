"""The inputs on which two networks are compared: the example, random inputs, other batches, other sizes.

Sampled values are images at several scales, other tokens, and masks with both values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import Tensor

from depl0.errors import Depl0Error
from depl0.host.inputs import ExampleInputs, output_tensors

Run: TypeAlias = Callable[[ExampleInputs], Any]
Shapes: TypeAlias = "list[tuple[int, ...]]"
IndexLimits: TypeAlias = "Sequence[int | None]"
"""For each tensor of the example: the size of the table if it is an index, or None."""
_LARGE_BATCH = 8


@dataclass(frozen=True)
class Case:
    """Inputs, and how they differ from the example."""

    what: str
    inputs: ExampleInputs


@dataclass(frozen=True)
class Accepted:
    """The cases that a network accepts, its outputs, and the names of the rejected cases."""

    cases: tuple[Case, ...]
    outputs: tuple[Any, ...]
    refused: tuple[str, ...] = ()
    shared: frozenset[int] = frozenset()
    """Numbers of input tensors that hold no entry per example, as another batch has shown."""

    @property
    def covered(self) -> tuple[str, ...]:
        """Return the names of the cases."""
        return tuple(case.what for case in self.cases)

    @property
    def smallest(self) -> tuple[Case, Any]:
        """Return the case with the fewest elements, the last one of several, and its outputs."""
        numbers = [case.inputs.numbers() for case in self.cases]
        place = len(numbers) - 1 - numbers[::-1].index(min(numbers))
        return self.cases[place], self.outputs[place]


def accepted_cases(run: Run, example: ExampleInputs, limits: IndexLimits) -> Accepted:
    """Run a network on the examples, and on all variations that it accepts. Only the examples must run."""
    collector = CaseCollector(run, example)
    collector.vary(limits)
    return collector.accepted()


def similar_cases(run: Run, example: ExampleInputs, number: int, limits: IndexLimits) -> Accepted:
    """Run a network on the example and on ``number`` other inputs of the same shapes, if it accepts them."""
    collector = CaseCollector(run, example.alone())
    for draw in samplers(collector.example, limits):
        collector.draw = draw
        if all(collector.first([collector.drawn("random inputs", _shapes(example))]) for _ in range(number)):
            break
    return collector.accepted()


class CaseCollector:
    """Collects the inputs that a network accepts. It must accept the examples, which are tried first."""

    def __init__(self, run: Run, example: ExampleInputs) -> None:
        self.run, self.example = run, example.alone()
        self.cases: list[Case] = []
        self.outputs: list[Any] = []
        self.draw = InputSampler(())
        self.channels_last = False
        self._refused: list[str] = []
        self._examples = 1 + len(example.others)
        for index, each in enumerate((example, *example.others)):
            self._take(Case("the example" if index == 0 else f"example {index + 1}", each.alone()))

    def _take(self, case: Case, must_say_something: bool = False) -> None:
        outputs = self.run(case.inputs)
        if must_say_something and not has_finite_numbers(outputs):
            raise ArithmeticError("no finite output")
        self.outputs.append(outputs)
        self.cases.append(case)

    def first(self, alternatives: Iterable[Case]) -> Case | None:
        """Accept the first of these cases that runs, and return it."""
        for case in alternatives:
            try:
                self._take(case, must_say_something=True)
            except Depl0Error:
                raise
            except Exception:
                continue  # the network does not accept this case
            self.draw.next_turn()
            return case
        return None

    def accepted(self) -> Accepted:
        """Return the cases that the network accepts."""
        return Accepted(tuple(self.cases), tuple(self.outputs), tuple(self._refused), self.example.shared)

    # -- values, batches and sizes -------------------------------------------------------------------------------------

    def vary(self, limits: IndexLimits) -> None:
        """Try other values, another batch and another size, in one case if possible."""
        batch = size = False
        for draw in samplers(self.example, limits):
            self.draw = draw
            batch, size = self._vary_shapes()
            for what in ("random inputs", "other random inputs"):
                if self._rows() < 2:  # only small values until now
                    self.first([self.drawn(what, _shapes(self.example))])
            if self._rows() >= 2:
                break
            if not draw.is_last:
                del self.cases[self._examples :], self.outputs[self._examples :]
        self._refused = [what for what, done in (("another batch", batch), ("another size", size)) if not done]
        self._refused += ["other values than the example's"] if self.draw.is_last else []

    def _rows(self) -> int:
        return sum(case.inputs.batch() for case in self.cases[self._examples :])

    def _vary_shapes(self) -> tuple[bool, bool]:
        """Try other batches and another size; return whether each was accepted."""
        doubled, *others = _other_batches(self.example) or [0]
        if not doubled:
            return False, False
        batched = self.drawn(f"batch of {doubled}", _shapes(self.example, doubled))
        size = self.first(self._other_sizes(doubled, f"{batched.what}, ")) is not None
        batch = size or self.first([batched]) is not None or self._shares_inputs(doubled)
        if not batch:
            size = self.first(self._other_sizes()) is not None
        for number in others:
            batch |= self.first([self.drawn(f"batch of {number}", _shapes(self.example, number))]) is not None
        return batch, size

    def _shares_inputs(self, batch: int) -> bool:
        """Try another batch without some inputs: a (16, 16) mask has no entry per example even if the batch is 16."""
        whole, like_batch = self.example, self.example.per_example()[1:]
        for shared in [*({number} for number in like_batch), set(like_batch)]:
            self.example = replace(whole, shared=frozenset(shared))
            if shared and self.first([self.drawn(f"batch of {batch}", _shapes(self.example, batch))]) is not None:
                return True
        self.example = whole
        return False

    def _other_sizes(self, batch: int | None = None, before: str = "") -> Iterator[Case]:
        """Yield sizes of the other parity, and then sizes that suit networks with many halvings."""
        for self.channels_last in (False, True):
            for grow in (_halved_to_other_parity, lambda size, _: size + 1, _halved):
                shapes = _shapes(self.example, batch, grow, self.channels_last)
                if names := self._sizes_in(shapes):
                    yield self.drawn(f"{before}size {names}", shapes)
        self.channels_last = False

    def _sizes_in(self, shapes: Shapes) -> str:
        dims = [_spatial(tensor, self.channels_last) for tensor in self.example.tensors()]
        named = ("x".join(str(shape[dim]) for dim in d) for shape, d in zip(shapes, dims, strict=True) if d)
        return " and ".join(dict.fromkeys(named))

    def drawn(self, what: str, shapes: Shapes) -> Case:
        """Return a case of these shapes, with sampled values."""
        numbers = count()

        def draw(tensor: Tensor) -> Tensor:
            number = next(numbers)
            return self.draw(number, tensor, shapes[number])

        return Case(what, self.example.map_tensors(draw))


def has_finite_numbers(outputs: Any) -> bool:
    """Return False if outputs are all NaN and infinities, so that they cannot be compared."""
    leaves = output_tensors(outputs)
    numbers = [leaf for leaf in leaves if leaf.numel() and (leaf.is_floating_point() or leaf.is_complex())]
    return not numbers or any(bool(leaf.isfinite().any()) for leaf in numbers)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _other_batches(example: ExampleInputs) -> list[int]:
    """Return twice the batch, and one: code that checks for more than one image has two paths."""
    batch = example.batch()
    if not any(tensor.dim() for tensor in example.tensors()):
        return []
    doubled = 2 * batch if batch <= _LARGE_BATCH else batch // 2
    return [doubled] if batch == 1 else [doubled, 1]


def _shapes(
    example: ExampleInputs,
    batch: int | None = None,
    grow: Callable[[int, int], int] | None = None,
    channels_last: bool = False,
) -> Shapes:
    """Return the shapes of an example's tensors with another batch and other sizes."""
    per_example, found = example.per_example(), []
    for number, tensor in enumerate(example.tensors()):
        shape = list(tensor.shape)
        if batch and number in per_example:
            shape[0] = batch
        for place, dim in enumerate(_spatial(tensor, channels_last) if grow else []):
            shape[dim] = grow(shape[dim], place) if grow else shape[dim]
        found.append(tuple(shape))
    return found


def _spatial(tensor: Tensor, channels_last: bool = False) -> list[int]:
    """Return the dimensions of an input that may be positions instead of channels."""
    if tensor.dim() == 2 and not tensor.is_floating_point():
        return [] if channels_last else [1]  # tokens
    if tensor.dim() < 3:
        return []
    return list(range(1, tensor.dim() - 1)) if channels_last else list(range(2, tensor.dim()))


def _halved_to_other_parity(size: int, place: int) -> int:
    half = size // 2 if size >= 16 else size
    return half + 1 - (half + size) % 2 + 2 * place


def _halved(size: int, place: int) -> int:
    return size // 2 if size % 64 == 0 else size + 32


_BYTES = 255.0
_LARGEST_NUMBER = 1000
"""Upper bound for integers whose meaning is unknown, for example timesteps."""


@dataclass
class InputSampler:
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


def samplers(example: ExampleInputs, limits: Sequence[int | None]) -> Iterator[InputSampler]:
    """Yield samplers, from the widest range to the example's own values: the first one that runs is the best."""
    is_float = [tensor.is_floating_point() or tensor.is_complex() for tensor in example.tensors()]
    ways = [("wide", "wide"), ("wide", "near"), ("normal", "near"), ("normal", "example"), ("example", "example")]
    for floats, integers in dict.fromkeys(
        (floats if any(is_float) else "example", integers if not all(is_float) else "example")
        for floats, integers in ways
    ):
        yield InputSampler(limits, floats, integers)


def _tiled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat and crop a tensor to a shape."""
    for dim, size in enumerate(shape):
        have = tensor.shape[dim]
        if have not in (0, size):
            tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % have)
    return tensor
