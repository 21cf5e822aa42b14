"""The inputs that two networks are compared on: the example, random ones, other batches, other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from depl0.analysis.branches import Bounds
from depl0.errors import Depl0Error
from depl0.host.inputs import ExampleInputs

Run: TypeAlias = Callable[[ExampleInputs], Any]
Draw: TypeAlias = Callable[[Tensor, "tuple[int, ...]"], Tensor]
"""gives a tensor like another one, of this shape"""
_LARGE_BATCH = 8
_LARGEST_BATCH = 64
_MOST_BOUNDS = 6
_MOST_NUMBERS = 2**17
"""of inputs that are tried because the code compares a size with a number"""


@dataclass(frozen=True)
class Case:
    """Inputs, and how they differ from the example."""

    what: str
    inputs: ExampleInputs


@dataclass(frozen=True)
class Accepted:
    """Cases that a network runs on, its outputs, and what it does not run on."""

    cases: tuple[Case, ...]
    outputs: tuple[Any, ...]
    refused: tuple[str, ...] = ()

    @property
    def covered(self) -> tuple[str, ...]:
        """Return the names of the cases."""
        return tuple(case.what for case in self.cases)


def accepted_cases(run: Run, example: ExampleInputs, bounds: Bounds) -> Accepted:
    """Run a network on the examples, and on whatever else it accepts. Only the examples must run.

    ``bounds`` are numbers that its code compares sizes with (:mod:`depl0.analysis.branches`): batches and sizes on both
    sides of them are offered.
    """
    offers = _Offers(run)
    for index, each in enumerate((example, *example.others)):
        offers.must_run(Case("the example" if index == 0 else f"example {index + 1}", each.alone()))
    example = example.alone()
    for draw in (_normal(), _resampled()):  # where random values are refused, inputs mean something: an index, say
        before = len(offers.cases)
        _offer_shapes(offers, example, draw)
        if len(offers.cases) > before or offers.first([Case("random inputs", _drawn(example, draw))]):
            break
    refused = [what for what, done in (("another batch", offers.batch), ("another size", offers.size)) if not done]
    return offers.accepted(refused + _offer_bounds(offers, example, draw, bounds))


def similar_cases(run: Run, example: ExampleInputs, count: int) -> Accepted:
    """Run a network on the example and on ``count`` other inputs of the same shapes, as far as it accepts such."""
    offers = _Offers(run)
    offers.must_run(Case("the example", example.alone()))
    for draw in (_normal(), _resampled()):
        cases = [Case("random inputs", _drawn(example.alone(), draw)) for _ in range(count)]
        if all(offers.first([case]) for case in cases):
            break
    return offers.accepted([])


class _Offers:
    """Inputs that a network was offered, and those that it runs on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cases: list[Case] = []
        self.outputs: list[Any] = []
        self.batch = self.size = False

    def must_run(self, case: Case) -> None:
        """Run a case; let errors through."""
        self.outputs.append(self.run(case.inputs))
        self.cases.append(case)

    def first(self, alternatives: Iterable[Case]) -> bool:
        """Take the first of these that runs."""
        for case in alternatives:
            try:
                self.must_run(case)
            except Depl0Error:
                raise
            except Exception:
                continue  # this one is not for the network
            return True
        return False

    def accepted(self, refused: list[str]) -> Accepted:
        """Return what the network runs on."""
        return Accepted(tuple(self.cases), tuple(self.outputs), tuple(refused))


def _offer_shapes(offers: _Offers, example: ExampleInputs, draw: Draw) -> None:
    """Offer another batch and another size, in one if possible."""
    doubled, *others = _other_batches(example) or [0]
    if not doubled:
        return
    batched = Case(f"batch of {doubled}", _with_batch(example, doubled, draw))
    offers.size = offers.first(_other_sizes(batched.inputs, draw, f"{batched.what}, "))
    offers.batch = offers.size or offers.first([batched])
    if not offers.batch:
        offers.size = offers.first(_other_sizes(example, draw))
    for batch in others:
        offers.batch |= offers.first([Case(f"batch of {batch}", _with_batch(example, batch, draw))])


def _offer_bounds(offers: _Offers, example: ExampleInputs, draw: Draw, bounds: Bounds) -> list[str]:
    """Offer batches and sizes on both sides of these numbers; return which of them are too large to try."""
    too_large = []
    for number in bounds.batches[:_MOST_BOUNDS]:
        for batch in _beyond(number, {_batch(case.inputs) for case in offers.cases}):
            if batch > _LARGEST_BATCH:
                too_large.append(f"batches above {number}")
                break
            offers.first([Case(f"batch of {batch}", _with_batch(example, batch, draw))])
    for number in bounds.sizes[:_MOST_BOUNDS]:
        for size in _beyond(number, {size for case in offers.cases for size in _sizes(case.inputs)}):
            inputs, _ = _resized(example, draw, lambda *_, size=size: size)
            if _numbers_in(inputs) > max(_MOST_NUMBERS, 4 * _numbers_in(example)):
                too_large.append(f"sizes above {number}")
                break
            offers.first([Case(f"size {size}", inputs)])
    return [f"{what}, with which the code compares" for what in too_large]


def _beyond(number: int, seen: set[int]) -> list[int]:
    """Return what lies on a number and on its other side, where nothing of it was seen."""
    if not seen:
        return []
    other = number + 1 if number >= max(seen) else number - 1 if number <= min(seen) else number
    return [value for value in dict.fromkeys((number, other)) if value > 0 and value not in seen]


# -- values ------------------------------------------------------------------------------------------------------------


def _normal() -> Draw:
    rng = torch.Generator().manual_seed(0)

    def draw(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if not like.is_floating_point():
            return _tiled(like, shape)
        return torch.randn(shape, generator=rng).to(like.device, like.dtype)

    return draw


def _resampled() -> Draw:
    """Give rows of the example in another order, so that every value is one that the network takes."""
    rng = torch.Generator().manual_seed(0)

    def draw(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        tiled = _tiled(like, shape)
        if not like.is_floating_point() or tiled.dim() == 0 or len(tiled) < 2:
            return tiled
        return tiled[torch.randperm(len(tiled), generator=rng).to(like.device)]

    return draw


def _tiled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat and crop a tensor to a shape."""
    for dim, size in enumerate(shape):
        have = tensor.shape[dim]
        if have not in (0, size):
            tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % have)
    return tensor


def _drawn(example: ExampleInputs, draw: Draw) -> ExampleInputs:
    return example.map_tensors(lambda t: draw(t, tuple(t.shape)))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _numbers_in(example: ExampleInputs) -> int:
    return sum(tensor.numel() for tensor in example.tensors())


def _batch(example: ExampleInputs) -> int:
    return next((tensor.shape[0] for tensor in example.tensors() if tensor.dim() > 0), 0)


def _other_batches(example: ExampleInputs) -> list[int]:
    """Return twice the batch, and one: code that asks for more than one image has two paths."""
    batch = _batch(example)
    if batch == 0:
        return []
    doubled = 2 * batch if batch <= _LARGE_BATCH else batch // 2
    return [doubled] if batch == 1 else [doubled, 1]


def _with_batch(example: ExampleInputs, batch: int, draw: Draw) -> ExampleInputs:
    before = _batch(example)

    def change(tensor: Tensor) -> Tensor:
        is_batch = tensor.dim() > 0 and tensor.shape[0] == before
        return draw(tensor, (batch, *tensor.shape[1:])) if is_batch else tensor

    return example.map_tensors(change)


def _sizes(example: ExampleInputs) -> set[int]:
    return {tensor.shape[dim] for tensor in example.tensors() for dim in _spatial(tensor)}


def _other_sizes(example: ExampleInputs, draw: Draw, before: str = "") -> Iterator[Case]:
    """Offer sizes with another remainder by two; then such as networks with many halvings want."""
    for channels_last in (False, True):
        for grow in (_halved_to_other_parity, _one_more, _halved):
            inputs, sizes = _resized(example, draw, grow, channels_last)
            if sizes:
                yield Case(f"{before}size {' and '.join(sizes)}", inputs)


def _resized(
    example: ExampleInputs, draw: Draw, grow: Callable[[int, int], int], channels_last: bool = False
) -> tuple[ExampleInputs, list[str]]:
    """Return inputs of other sizes, and what they are."""
    sizes: dict[str, None] = {}

    def change(tensor: Tensor) -> Tensor:
        dims = _spatial(tensor, channels_last)
        if not dims:
            return tensor
        shape = list(tensor.shape)
        for place, dim in enumerate(dims):
            shape[dim] = grow(shape[dim], place)
        sizes["x".join(str(shape[dim]) for dim in dims)] = None
        return draw(tensor, tuple(shape))

    return example.map_tensors(change), list(sizes)


def _spatial(tensor: Tensor, channels_last: bool = False) -> list[int]:
    """Return the dimensions of an input that may be positions, not channels."""
    if tensor.dim() == 2 and not tensor.is_floating_point():
        return [] if channels_last else [1]  # tokens
    if tensor.dim() < 3:
        return []
    return list(range(1, tensor.dim() - 1)) if channels_last else list(range(2, tensor.dim()))


def _halved_to_other_parity(size: int, place: int) -> int:
    half = size // 2 if size >= 16 else size
    return half + 1 - (half + size) % 2 + 2 * place


def _one_more(size: int, place: int) -> int:
    return size + 1


def _halved(size: int, place: int) -> int:
    return size // 2 if size % 64 == 0 else size + 32
