"""What a field of a recipe may be: in words for people, and as a test for values.

Each check is data on its field. It gives a value back as it is stored (a list becomes a tuple, a whole number where any
number is meant becomes a float), or refuses it.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import final

from depl0._util.registry import did_you_mean


class Refused(Exception):
    """A value is not what its check allows; ``hint`` may say what was meant."""

    def __init__(self, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(hint)


class Check(ABC):
    """What one field allows."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Say what is allowed, as in "must be …"."""

    @abstractmethod
    def read(self, value: object) -> object:
        """Give the value as it is stored, or raise Refused."""

    def write(self, value: object) -> object:
        """Give a stored value as a TOML file has it."""
        return value

    def accepts(self, value: object) -> bool:
        """Say whether a value is allowed."""
        try:
            self.read(value)
        except Refused:
            return False
        return True


@final
@dataclasses.dataclass(frozen=True)
class Whole(Check):
    """A whole number; True and False are none."""

    at_least: int
    at_most: int | None = None

    @property
    def words(self) -> str:
        """Say what is allowed."""
        if self.at_most is None:
            return f"a whole number of at least {self.at_least}"
        return f"a whole number from {self.at_least} to {self.at_most}"

    def read(self, value: object) -> int:
        """Give an int."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused
        if value < self.at_least or (self.at_most is not None and value > self.at_most):
            raise Refused
        return int(value)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Number(Check):
    """A finite number within bounds.

    >>> Number(above=0, at_most=1).words
    'a number above 0 and at most 1'
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    @property
    def words(self) -> str:
        """Say what is allowed."""
        bounds = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
        return f"a number {limits}" if limits else "a finite number"

    def read(self, value: object) -> float:
        """Give a float."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused
        try:
            number = float(value)
        except OverflowError:
            raise Refused from None
        fits = (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )
        if not fits:
            raise Refused
        return number


@final
@dataclasses.dataclass(frozen=True)
class Flag(Check):
    """Yes or no."""

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return "true or false"

    def read(self, value: object) -> bool:
        """Give a bool."""
        if not isinstance(value, bool):
            raise Refused
        return value


@final
@dataclasses.dataclass(frozen=True)
class Text(Check):
    """One line of text; ``valid`` narrows it and may raise Refused with a hint."""

    meaning: str = "a line of text"
    may_be_empty: bool = False
    valid: Callable[[str], bool] = lambda text: True

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return self.meaning

    def read(self, value: object) -> str:
        """Give a str."""
        if not isinstance(value, str) or not (value or self.may_be_empty):
            raise Refused
        # Control characters and lone surrogates cannot be meant, and the latter cannot be written to a file.
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in value) or not self.valid(value):
            raise Refused
        return value


@final
@dataclasses.dataclass(frozen=True)
class OneOf(Check):
    """One of some names; a function gives those of a register that can still grow."""

    names: tuple[str, ...] | Callable[[], Iterable[str]]

    @property
    def words(self) -> str:
        """Say what is allowed."""
        known = self._known()
        return f"one of {', '.join(map(repr, known))}" if len(known) != 1 else repr(known[0])

    def read(self, value: object) -> str:
        """Give the name."""
        if not isinstance(value, str):
            raise Refused
        if value not in self._known():
            raise Refused(did_you_mean(value, self._known()))
        return value

    def _known(self) -> tuple[str, ...]:
        return self.names if isinstance(self.names, tuple) else tuple(self.names())


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOf(Check):
    """Several values, stored as a tuple."""

    entry: Check
    length: int | None = None
    at_least: int = 0
    rising: bool = False
    distinct: bool = False

    @property
    def words(self) -> str:
        """Say what is allowed."""
        size = f" of {self.length}" if self.length is not None else ""
        order = " in rising order" if self.rising else ""
        once = " and none comes twice" if self.distinct else ""
        full = "a list that is not empty" if self.at_least else "a list"
        return f"{full}{size}{order} in which every entry is {self.entry.words}{once}"

    def read(self, value: object) -> tuple[object, ...]:
        """Give a tuple."""
        if not isinstance(value, list | tuple):
            raise Refused
        entries = tuple(self.entry.read(entry) for entry in value)
        if len(entries) < self.at_least or (self.length is not None and len(entries) != self.length):
            raise Refused
        if self.distinct and len(set(entries)) < len(entries):
            raise Refused
        if self.rising and any(not before < after for before, after in pairwise(entries)):  # type: ignore[operator]
            raise Refused
        return entries


@final
@dataclasses.dataclass(frozen=True)
class Named(Check):
    """Values by name, stored as a tuple of pairs in the order of their names, so that nobody can change them.

    >>> Named(Whole(at_least=0)).read({"b": 2, "a": 1})
    (('a', 1), ('b', 2))
    """

    entry: Check

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return f"a table of names in which every value is {self.entry.words}"

    def read(self, value: object) -> tuple[tuple[str, object], ...]:
        """Give a tuple of pairs, of a table or of such a tuple."""
        try:
            table = dict(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise Refused from None
        if not all(isinstance(name, str) and name.isidentifier() for name in table):
            raise Refused
        return tuple((name, self.entry.read(table[name])) for name in sorted(table))

    def write(self, value: object) -> object:
        """Give a table."""
        return dict(value)  # type: ignore[call-overload]


@final
@dataclasses.dataclass(frozen=True)
class Maybe(Check):
    """A value or None; in a file the field is then left out."""

    entry: Check

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return f"{self.entry.words}, or left out"

    def read(self, value: object) -> object:
        """Give the value or None."""
        return None if value is None else self.entry.read(value)

    def write(self, value: object) -> object:
        """Give the value as a file has it."""
        return None if value is None else self.entry.write(value)


@final
@dataclasses.dataclass(frozen=True)
class Either(Check):
    """What the first or the second check allows."""

    first: Check
    second: Check

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return f"{self.first.words}, or {self.second.words}"

    def read(self, value: object) -> object:
        """Give the value as the check that allows it does."""
        try:
            return self.first.read(value)
        except Refused as refused:
            if self.second.accepts(value):
                return self.second.read(value)
            raise refused


@final
@dataclasses.dataclass(frozen=True)
class Instance(Check):
    """An object of one class."""

    kind: type

    @property
    def words(self) -> str:
        """Say what is allowed."""
        return f"a {self.kind.__name__}"

    def read(self, value: object) -> object:
        """Give the object."""
        if not isinstance(value, self.kind):
            raise Refused
        return value


def shown(value: object) -> str:
    """Write a value as in an error, not longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
