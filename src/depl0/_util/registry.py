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

from depl0.errors import Depl0Error, InputError

T = TypeVar("T")
OWN = "write path/to/file.py:Name or my_package.module:Name."
"""how a class of the user's own is named"""
Source = TypeVar("Source", bound=Callable[..., Any])


@final
class Registry(Mapping[str, T]):
    """A mapping from names to things, in the order in which classes or functions were registered.

    Where it is given ``own``, :meth:`find` also takes what names a thing of the user's own: ``file.py:Name`` or
    ``package.module:Name``. Nothing of that kind is in the mapping itself.

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

    def __init__(
        self,
        what: str,
        advice: str | None = None,
        plugins: str | None = None,
        own: Callable[[str], T] | None = None,
    ) -> None:
        """Make an empty registry.

        Args:
            what: what errors call a thing.
            advice: the hint for a name that is like none of the known ones.
            plugins: group of entry points by which other packages add to it, loaded when first needed.
            own: imports a thing of the user's own (:func:`depl0._util.user_code.load_class`).
        """
        self._own = own
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
        """Return the thing of this name, importing one of the user's own; or ask which one was meant."""
        self.check(name)
        return self._own(name) if self._own is not None and ":" in name else self._things[name]

    def check(self, name: str) -> None:
        """Refuse a text that can name nothing here. One of the user's own is not imported for it."""
        if self._own is not None and ":" in name:
            where, _, last = name.rpartition(":")
            if not (where and last.isidentifier()):
                raise InputError(f"{self._what} {name!r} must have a name on both sides of the colon.", hint=OWN)
        elif name not in self._things and name not in self._all():
            advice = self._advice or (None if self._own is None else f"one of your own: {OWN}")
            raise unknown(self._what, name, self.names(), advice)

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
    loaded = {}
    for point in entry_points(group=group):
        try:
            loaded[point.name] = point.load()
        except Depl0Error:
            raise
        except Exception as error:  # whatever the code of another package raises
            package = point.value if point.dist is None else point.dist.name
            raise InputError(
                f"the entry point {point.name!r} of {group}, {point.value}, cannot be loaded: "
                f"{type(error).__name__}: {error}.",
                hint=f"update or uninstall {package}.",
            ) from error
    return loaded


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


def suggest_fraction(value: object) -> str | None:
    """Return a hint for a share that was given in percent.

    >>> suggest_fraction(50), suggest_fraction(0.0)
    ('did you mean 0.5?', None)
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"did you mean {value / 100:g}?" if is_number and 1 < value <= 100 else None  # type: ignore[operator]


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
