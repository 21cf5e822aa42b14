"""Things by name, to which a new file or another package can add, and hints for a name that is none of them."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, TypeVar, final

from depl0.errors import InputError

T = TypeVar("T")
Source = TypeVar("Source", bound=Callable[..., Any])


@final
class Registry(Mapping[str, T]):
    """A mapping from names to things, in the order in which classes or functions were registered.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("circle", lambda kind: kind)
    ... class Circle: ...
    >>> shapes["circle"] is Circle, list(shapes)
    (True, ['circle'])
    >>> shapes.find("cirle")
    Traceback (most recent call last):
    depl0.errors.InputError: The shape must be one of 'circle', got 'cirle' instead.
    hint: did you mean circle?
    """

    def __init__(self, what: str, advice: str | None = None, plugins: str | None = None) -> None:
        """``plugins`` is the group of entry points by which other packages add to it, loaded when first needed."""
        self._what = what
        self._advice = advice
        self._plugins = plugins
        self._things: dict[str, T] = {}
        self._sources: dict[str, str] = {}

    def register(self, name: str, make: Callable[[Any], T]) -> Callable[[Source], Source]:
        """Return a decorator that makes a class or function known by a name; ``make`` gives the thing for it."""

        def add(source: Source) -> Source:
            title = f"{self._what[:1].upper()}{self._what[1:]} {name!r}"
            if inspect.isabstract(source):
                lacking = ", ".join(sorted(getattr(source, "__abstractmethods__", ())))
                raise InputError(f"{title} cannot be registered: {source.__name__} lacks {lacking}.")
            path = f"{source.__module__}.{source.__qualname__}"
            known = self._sources.get(name, path)  # the same path again is a reloaded module
            if known != path:
                raise InputError(f"{title} is already registered, by {known}.", hint="choose another name.")
            self._things[name] = make(source)
            self._sources[name] = path
            return source

        return add

    def find(self, name: str) -> T:
        """Return the thing of this name, or ask which one was meant."""
        if name not in self._things and name not in self._all():
            raise unknown(self._what, name, self.names(), self._advice)
        return self._things[name]

    def names(self) -> tuple[str, ...]:
        """List the names in alphabetical order."""
        return tuple(sorted(self._all()))

    def _all(self) -> dict[str, T]:
        """Return everything, what other packages register when they are imported included."""
        group, self._plugins = self._plugins, None
        if group is not None:
            load_plugins(group)
        return self._things

    def __getitem__(self, name: str) -> T:
        return self._things[name] if name in self._things else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def load_plugins(group: str) -> dict[str, Any]:
    """Load what installed packages offer under a group of entry points, by name; it may register itself."""
    return {point.name: point.load() for point in entry_points(group=group)}


def import_modules_of(package: str) -> None:
    """Import every module of a package, so that each registers what it holds; private ones are left out."""
    for module in iter_modules(sys.modules[package].__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")


def unknown(what: str, name: object, known: Iterable[str], advice: str | None = None) -> InputError:
    """Return the error for a wrong name. Its hint is the nearest right ones, or else the advice.

    >>> print(unknown("direction", "foward", ["forward", "backward"]))
    The direction must be one of 'forward', 'backward', got 'foward' instead.
    hint: did you mean forward?
    """
    names = list(known)
    return InputError(
        f"The {what} must be one of {', '.join(map(repr, names))}, got {name!r} instead.",
        hint=did_you_mean(name, names) or advice,
    )


def did_you_mean(name: object, known: Iterable[str]) -> str | None:
    """Return the nearest known names as a question, or None when none is near.

    >>> did_you_mean("FC-relo", ["fc", "fc-relu", "fc-tanh"])
    'did you mean fc-relu?'
    """
    return question(nearest(name, known))


def nearest(name: object, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are spelled much like this one, the nearest first; case does not count."""
    spelled = {each.lower(): each for each in known}
    return [spelled[near] for near in difflib.get_close_matches(str(name).lower(), spelled, n=most)]


def question(names: Sequence[str]) -> str | None:
    """Ask whether one of these was meant; None where there are none."""
    return f"did you mean {' or '.join(names)}?" if names else None
