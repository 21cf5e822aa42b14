"""Inputs on the other side of the conditions on sizes that a network's code asks for (:mod:`depl0.analysis.branches`).

How a size inside the network follows those of the inputs is seen from the inputs that were tried already; that gives
batches and sizes at which a condition should turn. They are run, which shows whether it does, and what is asked there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from types import CodeType

from depl0.analysis.branches import Condition, Observer, Place, Size
from depl0.analysis.plan import Variant
from depl0.equivalence.cases import Case, Offers

_MOST_RUNS = 12
_MOST_RUNS_EACH = 4
_LARGEST_BATCH = 64
_MOST_NUMBERS = 2**17
"""of inputs that are tried because the code asks for their sizes"""
_LARGEST_SIZE = 2**24


def offer_other_sides(offers: Offers, observer_of: Callable[[Case], Observer]) -> tuple[list[Variant], list[str]]:
    """Offer inputs on the other side of every condition that was the same for all inputs so far.

    Returns those that run, and what could not be tried.
    """
    found: list[Variant] = []
    missed: dict[str, None] = {}
    given_up: set[tuple[CodeType, int]] = set()
    runs = 0
    while (asked := _one_sided([(case, observer_of(case)) for case in offers.cases], given_up)) is not None:
        case, condition = asked
        observed = [(offers.measure(case.inputs), observer_of(case))]
        observed += [(offers.measure(c.inputs), observer_of(c)) for c in offers.cases if c is not case]
        turning, too_large = _turning(condition, observed, offers)
        if too_large is not None and not turning:
            missed[f"the other side of {condition}, as {_named(too_large, observed[0][0])} is too large to try"] = None
        ran = False
        for variant in turning[:_MOST_RUNS_EACH]:
            runs += 1
            taken = offers.first([offers.variant(variant)]) if runs <= _MOST_RUNS else None
            ran |= taken is not None or runs > _MOST_RUNS
            if taken is not None:
                if _turned(condition, observer_of(taken)):
                    found.append(variant)
                    break
                offers.take_back()
        else:
            given_up.add(condition.place[:2])
            if ran:
                missed[f"the other side of {condition}"] = None
    return found, list(missed)


def _one_sided(
    observed: Sequence[tuple[Case, Observer]], given_up: set[tuple[CodeType, int]]
) -> tuple[Case, Condition] | None:
    """Return a condition that was the same whenever it was asked for, and the case in which it was first."""
    seen: set[Place] = set()
    for case, observer in observed:
        for condition in observer.conditions:
            if condition.place not in seen and condition.place[:2] not in given_up:
                seen.add(condition.place)
                if not any(_turned(condition, other) for _, other in observed):
                    return case, condition
    return None


def _turned(condition: Condition, observer: Observer) -> bool:
    """Tell whether a condition was otherwise in another pass."""
    try:
        return bool(condition.holds(observer.sizes)) != condition.held
    except (KeyError, ArithmeticError, ValueError):  # that pass went another way before
        return any(c.place[:2] == condition.place[:2] and c.held != condition.held for c in observer.conditions)


def _turning(
    condition: Condition, observed: Sequence[tuple[Variant, Observer]], offers: Offers
) -> tuple[list[Variant], Variant | None]:
    """Return batches and sizes at which a condition should turn, the smallest inputs first; and the first too large."""
    base = observed[0][0]
    sizes = _Predicted(observed)

    def turns(variant: Variant) -> bool:
        try:
            return bool(condition.holds(sizes.at(variant))) != condition.held
        except (ArithmeticError, ValueError):
            return False

    if not turns(base) and not sizes.vary():
        return [], None
    largest = max(_MOST_NUMBERS, 4 * _numbers(offers.cases[0]))
    each = _numbers(offers.cases[0]) / max(_numbers_of(offers.measure(offers.cases[0].inputs)), 1)
    small: list[Variant] = []
    too_large: list[Variant] = []
    for direction in _directions(base):
        for variant in _values(direction, turns):
            fits = _numbers_of(variant) * each <= largest and (variant.batch or 1) <= max(
                _LARGEST_BATCH, base.batch or 1
            )
            (small if fits else too_large).append(variant)
    key = _numbers_of
    return sorted(dict.fromkeys(small), key=key), min(too_large, key=key, default=None)


def _directions(base: Variant) -> Iterator[Callable[[int], Variant]]:
    """Give the ways to vary the inputs: the batch, all sizes together, each size alone."""
    yield lambda n: Variant(n, base.sizes)
    if base.sizes:
        yield lambda n: Variant(base.batch, (n,) * len(base.sizes))
    if len(base.sizes) > 1:
        for place in range(len(base.sizes)):
            yield partial(_with_size, base, place)


def _with_size(base: Variant, place: int, size: int) -> Variant:
    return Variant(base.batch, (*base.sizes[:place], size, *base.sizes[place + 1 :]))


def _values(direction: Callable[[int], Variant], turns: Callable[[Variant], bool]) -> Iterator[Variant]:
    """Give the least inputs in one direction at which a condition turns, and some that are larger."""
    grid = [*range(1, 65), *(round(64 * 1.25**k) for k in range(1, 60))]
    for below, above in pairwise([0, *(n for n in grid if n <= _LARGEST_SIZE)]):
        if turns(direction(above)):
            while above - below > 1:
                middle = (below + above) // 2
                below, above = (below, middle) if turns(direction(middle)) else (middle, above)
            yield direction(above)
            yield from (direction(n) for n in (above + 1, above + max(2, above // 8)) if turns(direction(n)))
            return


def _numbers_of(variant: Variant) -> int:
    return (variant.batch or 1) * math.prod(variant.sizes)


def _numbers(case: Case) -> int:
    return sum(tensor.numel() for tensor in case.inputs.tensors())


def _named(variant: Variant, base: Variant) -> str:
    if variant.sizes == base.sizes:
        return f"a batch of {variant.batch}"
    return f"size {'x'.join(map(str, variant.sizes))}"


class _Predicted(dict[Size, int]):
    """Sizes that the code would read for other inputs."""

    def __init__(self, observed: Sequence[tuple[Variant, Observer]]) -> None:
        super().__init__()
        self._observed, self._ratios = observed, [1.0]
        self._factors: dict[Size, tuple[int, ...]] = {}

    def at(self, variant: Variant) -> Mapping[Size, int]:
        """Return the sizes for a batch and sizes of the inputs."""
        self.clear()
        self._ratios = _ratios(variant, self._observed[0][0])
        return self

    def vary(self) -> bool:
        """Tell whether any size that was asked for so far follows the inputs'."""
        return any(self._factors.values())

    def __missing__(self, size: Size) -> int:
        if size not in self._factors:
            self._factors[size] = self._explained(size)
        value = self._observed[0][1].sizes[size] * math.prod(self._ratios[factor] for factor in self._factors[size])
        self[size] = max(round(value), 0)
        return self[size]

    def _explained(self, size: Size) -> tuple[int, ...]:
        """Return which of the inputs' batch and sizes a size is proportional to: the fewest that explain it best."""
        base, own = self._observed[0]
        values = [(_ratios(v, base), o.sizes[size] / own.sizes[size]) for v, o in self._observed[1:]
                  if o.sizes.get(size) and own.sizes[size]]  # fmt: skip
        if not values:
            return (0,) if size.dim == 0 else (size.dim - 1,) if 2 <= size.dim <= 1 + len(base.sizes) else ()
        places = range(1 + len(base.sizes))
        subsets = [s for n in range(len(places) + 1) for s in combinations(places, n)]
        return min(
            subsets, key=lambda s: round(sum(abs(math.log(v / math.prod(r[p] for p in s))) for r, v in values), 2)
        )


def _ratios(variant: Variant, base: Variant) -> list[float]:
    pairs = [(variant.batch or 1, base.batch or 1), *zip(variant.sizes, base.sizes, strict=True)]
    return [new / old for new, old in pairs]
