"""The inputs on which two networks are compared: the example, random inputs, other batches, other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from torch import Tensor

from depl0.equivalence.values import Draw, draws
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
    drawn: tuple[str, ...] = ()
    """For each input, the sampled values in the cases that are not examples."""

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
    offers = Offers(run, example)
    offers.vary(limits)
    return offers.accepted()


def similar_cases(run: Run, example: ExampleInputs, number: int, limits: IndexLimits) -> Accepted:
    """Run a network on the example and on ``number`` other inputs of the same shapes, if it accepts them."""
    offers = Offers(run, example.alone())
    for draw in draws(offers.example, limits):
        offers.draw = draw
        if all(offers.first([offers.drawn("random inputs", _shapes(example))]) for _ in range(number)):
            break
    return offers.accepted()


class Offers:
    """Collects the inputs that a network accepts. It must accept the examples, which are tried first."""

    def __init__(self, run: Run, example: ExampleInputs) -> None:
        self.run, self.example = run, example.alone()
        self.cases: list[Case] = []
        self.outputs: list[Any] = []
        self.draw = Draw(())
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
        what = self.draw.describe(self.example) if len(self.cases) > self._examples else ()
        return Accepted(tuple(self.cases), tuple(self.outputs), tuple(self._refused), what)

    # -- values, batches and sizes -------------------------------------------------------------------------------------

    def vary(self, limits: IndexLimits) -> None:
        """Try other values, another batch and another size, in one case if possible."""
        batch = size = False
        for draw in draws(self.example, limits):
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
        return sum(max(_batch(case.inputs), 1) for case in self.cases[self._examples :])

    def _vary_shapes(self) -> tuple[bool, bool]:
        """Try other batches and another size; return whether each was accepted."""
        doubled, *others = _other_batches(self.example) or [0]
        if not doubled:
            return False, False
        batched = self.drawn(f"batch of {doubled}", _shapes(self.example, doubled))
        size = self.first(self._other_sizes(doubled, f"{batched.what}, ")) is not None
        batch = size or self.first([batched]) is not None
        if not batch:
            size = self.first(self._other_sizes()) is not None
        for number in others:
            batch |= self.first([self.drawn(f"batch of {number}", _shapes(self.example, number))]) is not None
        return batch, size

    def _other_sizes(self, batch: int | None = None, before: str = "") -> Iterator[Case]:
        """Yield sizes of the other parity, and then sizes that suit networks with many halvings."""
        for self.channels_last in (False, True):
            for grow in (_halved_to_other_parity, _one_more, _halved):
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


def _batch(example: ExampleInputs) -> int:
    return next((tensor.shape[0] for tensor in example.tensors() if tensor.dim() > 0), 0)


def _other_batches(example: ExampleInputs) -> list[int]:
    """Return twice the batch, and one: code that checks for more than one image has two paths."""
    batch = _batch(example)
    if batch == 0:
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
    before, found = _batch(example), []
    for tensor in example.tensors():
        shape = list(tensor.shape)
        if batch and shape and shape[0] == before:
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


def _one_more(size: int, place: int) -> int:
    return size + 1


def _halved(size: int, place: int) -> int:
    return size // 2 if size % 64 == 0 else size + 32
