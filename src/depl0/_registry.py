"""Things by name, each of which a new file can add to."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar, final

from depl0._suggest import unknown
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

    def __init__(self, what: str, advice: str | None = None) -> None:
        self._what = what
        self._advice = advice
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
        if name not in self._things:
            raise unknown(self._what, name, self.names(), self._advice)
        return self._things[name]

    def names(self) -> tuple[str, ...]:
        """List the names in alphabetical order."""
        return tuple(sorted(self._things))

    def __getitem__(self, name: str) -> T:
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


def import_modules_of(package: str) -> None:
    """Import every module of a package, so that each registers what it holds; private ones are left out."""
    for module in iter_modules(sys.modules[package].__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")
