"""The inputs that two networks are compared on: the example, random ones, another batch, another size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depl0.analysis.bounds import Bounds
from depl0.errors import Depl0Error
from depl0.host.inputs import ExampleInputs

Draw = Callable[[Tensor, "tuple[int, ...]"], Tensor]
"""gives a tensor like another one, of this shape"""
_LARGE_BATCH = 8
_LARGEST_BATCH = 64
_MOST_BOUNDS = 6
_MOST_NUMBERS = 2**17
"""of inputs that are tried because the code compares a size with a number"""


@dataclass(frozen=True)
class Case:
    """Inputs, and in what they differ from the example."""

    what: str
    inputs: ExampleInputs


@dataclass(frozen=True)
class Accepted:
    """Cases that a network takes, what it gives on them, and what it was offered in vain."""

    cases: tuple[Case, ...]
    outputs: tuple[Any, ...]
    refused: tuple[str, ...]

    @property
    def covered(self) -> tuple[str, ...]:
        """Say on what the network was run."""
        return tuple(case.what for case in self.cases)


def accepted(run: Callable[[ExampleInputs], Any], example: ExampleInputs, bounds: Bounds) -> Accepted:
    """Run a network on the examples, and on whatever else it accepts. Only the examples must run.

    ``bounds`` are numbers that its code compares sizes with (:mod:`depl0.analysis.bounds`): batches and sizes on both
    sides of them are offered.
    """
    offers = _Offers(run)
    for index, each in enumerate((example, *example.others)):
        offers.cases.append(Case("the example" if index == 0 else f"example {index + 1}", _alone(each)))
        offers.outputs.append(run(offers.cases[-1].inputs))
    for draw in (_normal(), _resampled()):  # where random values are refused, inputs mean something: an index, say
        before = len(offers.cases)
        _offer_shapes(offers, example, draw)
        if len(offers.cases) > before or offers.first([Case("random inputs", _drawn(example, draw))]):
            break
    refused = [what for what, done in (("another batch", offers.batch), ("another size", offers.size)) if not done]
    refused += _offer_bounds(offers, example, draw, bounds)
    return Accepted(tuple(offers.cases), tuple(offers.outputs), tuple(refused))


class _Offers:
    """Inputs that a network was offered, and those that it took."""

    def __init__(self, run: Callable[[ExampleInputs], Any]) -> None:
        self.run = run
        self.cases: list[Case] = []
        self.outputs: list[Any] = []
        self.batch = self.size = False

    def first(self, alternatives: Iterable[Case]) -> bool:
        """Take the first of these that runs."""
        for case in alternatives:
            try:
                self.outputs.append(self.run(case.inputs))
            except Depl0Error:
                raise
            except Exception:
                continue  # this one is not for the network
            self.cases.append(case)
            return True
        return False


def _offer_shapes(offers: _Offers, example: ExampleInputs, draw: Draw) -> None:
    """Offer another batch and another size, in one if possible."""
    doubled, *others = _other_batches(example) or [0]
    if not doubled:
        return
    batched = Case(f"batch of {doubled}", _with_batch(example, doubled, draw))
    offers.size = offers.first(_other_sizes(batched.inputs, draw, f"{batched.what}, "))
    offers.batch = offers.size or offers.first([batched])
    if not offers.batch:
        offers.size = offers.first(_other_sizes(_alone(example), draw))
    for batch in others:
        offers.batch |= offers.first([Case(f"batch of {batch}", _with_batch(example, batch, draw))])


def _offer_bounds(offers: _Offers, example: ExampleInputs, draw: Draw, bounds: Bounds) -> list[str]:
    """Offer batches and sizes on both sides of these numbers; say which of them are too large to try."""
    too_large = []
    for number in bounds.batches[:_MOST_BOUNDS]:
        for batch in _beyond(number, {_batch(case.inputs) for case in offers.cases}):
            if batch > _LARGEST_BATCH:
                too_large.append(f"batches above {number}")
                break
            offers.first([Case(f"batch of {batch}", _with_batch(example, batch, draw))])
    for number in bounds.sizes[:_MOST_BOUNDS]:
        for size in _beyond(number, {size for case in offers.cases for size in _sizes(case.inputs)}):
            case = _with_size(example, size, draw)
            if _numbers_in(case.inputs) > max(_MOST_NUMBERS, 4 * _numbers_in(example)):
                too_large.append(f"sizes above {number}")
                break
            offers.first([case])
    return [f"{what}, with which the code compares" for what in too_large]


def _beyond(number: int, seen: set[int]) -> list[int]:
    """Return what lies on a number and on its other side, where nothing of it was seen."""
    if not seen:
        return []
    other = number + 1 if number >= max(seen) else number - 1 if number <= min(seen) else number
    return [value for value in dict.fromkeys((number, other)) if value > 0 and value not in seen]


def _sizes(example: ExampleInputs) -> set[int]:
    return {leaf.shape[dim] for leaf in example.leaves() if isinstance(leaf, Tensor) for dim in _spatial(leaf, False)}


def _with_size(example: ExampleInputs, size: int, draw: Draw) -> Case:
    def change(tensor: Tensor) -> Tensor:
        shape = [size if dim in _spatial(tensor, False) else before for dim, before in enumerate(tensor.shape)]
        return tensor if shape == list(tensor.shape) else draw(tensor, tuple(shape))

    return Case(f"size {size}", _alone(example).map_tensors(change))


def _numbers_in(example: ExampleInputs) -> int:
    return sum(leaf.numel() for leaf in example.leaves() if isinstance(leaf, Tensor))


def _alone(example: ExampleInputs) -> ExampleInputs:
    return ExampleInputs(example.args, example.kwargs)


def similar(run: Callable[[ExampleInputs], Any], example: ExampleInputs, count: int) -> Accepted:
    """Run a network on the example and on ``count`` other inputs of the same shapes, as far as it takes such."""
    offers = _Offers(run)
    offers.cases.append(Case("the example", _alone(example)))
    offers.outputs.append(run(offers.cases[0].inputs))
    for draw in (_normal(), _resampled()):  # where random values are refused, inputs mean something
        cases = [Case("random inputs", _drawn(example, draw)) for _ in range(count)]
        if all(offers.first([case]) for case in cases):
            break
    return Accepted(tuple(offers.cases), tuple(offers.outputs), ())


# -- values --------------------------------------------------------------------------------------------------------


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
        if have == 0 or have == size:
            continue
        index = torch.arange(size, device=tensor.device) % have
        tensor = tensor.index_select(dim, index)
    return tensor


def _drawn(example: ExampleInputs, draw: Draw) -> ExampleInputs:
    return _alone(example).map_tensors(lambda t: draw(t, tuple(t.shape)))


# -- shapes --------------------------------------------------------------------------------------------------------


def _batch(example: ExampleInputs) -> int:
    sizes = [leaf.shape[0] for leaf in example.leaves() if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return int(sizes[0]) if sizes else 0


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
        if tensor.dim() == 0 or tensor.shape[0] != before:
            return tensor
        return draw(tensor, (batch, *tensor.shape[1:]))

    return _alone(example).map_tensors(change)


def _other_sizes(example: ExampleInputs, draw: Draw, before: str = "") -> Iterator[Case]:
    """Offer sizes with another remainder by two; then such as networks with many halvings want."""
    for channels_last in (False, True):
        for grow in _GROWTHS:
            sizes: dict[str, None] = {}

            def change(
                tensor: Tensor, channels_last: bool = channels_last, grow: Any = grow, sizes: Any = sizes
            ) -> Tensor:
                dims = _spatial(tensor, channels_last)
                if not dims:
                    return tensor
                shape = list(tensor.shape)
                for place, dim in enumerate(dims):
                    shape[dim] = grow(shape[dim], place)
                sizes["x".join(str(shape[dim]) for dim in dims)] = None
                return draw(tensor, tuple(shape))

            changed = _alone(example).map_tensors(change)
            if sizes:
                yield Case(f"{before}size {' and '.join(sizes)}", changed)


def _spatial(tensor: Tensor, channels_last: bool) -> list[int]:
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


_GROWTHS = (_halved_to_other_parity, _one_more, _halved)
