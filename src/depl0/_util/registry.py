"""Registries that new files and other packages can extend, and hints for unknown names."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, TypeVar, final

from depl0.errors import Depl0Error, InputError

T = TypeVar("T")
OWN = "write path/to/file.py:Name or my_package.module:Name."
"""hint on how to specify a user-defined class"""
Source = TypeVar("Source", bound=Callable[..., Any])


@final
class Registry(Mapping[str, T]):
    """A mapping from names to entries, in the order in which classes or functions were registered.

    With ``own``, :meth:`find` also accepts user-defined entries: ``file.py:Name`` or ``package.module:Name``. These are
    not part of the mapping itself.
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
            what: name of an entry in error messages.
            advice: the hint for a name that resembles none of the known ones.
            plugins: entry-point group by which other packages add entries, loaded on first use.
            own: imports a user-defined entry (:func:`depl0._util.user_code.load_class`).
        """
        self._own = own
        self._what = what
        self._advice = advice
        self._plugins = plugins
        self._things: dict[str, T] = {}
        self._sources: dict[str, str] = {}

    def register(self, name: str, make: Callable[[Any], T]) -> Callable[[Source], Source]:
        """Return a decorator that registers a class or function by name. ``make`` converts it to the stored entry."""

        def add(source: Source) -> Source:
            title = f"{self._what[:1].upper()}{self._what[1:]} {name!r}"
            path = f"{source.__module__}.{source.__qualname__}"
            known = self._sources.get(name, path)  # the same path a second time means a reloaded module
            if known != path:
                raise InputError(f"{title} is already registered, by {known}.", hint="choose another name.")
            self._things[name] = make(source)
            self._sources[name] = path
            return source

        return add

    def find(self, name: str) -> T:
        """Return the entry of this name, importing a user-defined one. Raise with a suggestion if it is unknown."""
        self.check(name)
        return self._own(name) if self._own is not None and ":" in name else self._things[name]

    def check(self, name: str) -> None:
        """Raise if a text cannot name an entry. User-defined entries are not imported for this check."""
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
        """Return all entries, including those that plugins register when they are imported."""
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
    """Load an entry-point group of the installed packages, by name. An entry may register itself when it is loaded."""
    loaded = {}
    for point in entry_points(group=group):
        try:
            loaded[point.name] = point.load()
        except Depl0Error:
            raise
        except Exception as error:  # another package may raise any exception
            package = point.value if point.dist is None else point.dist.name
            raise InputError(
                f"the entry point {point.name!r} of {group}, {point.value}, cannot be loaded: "
                f"{type(error).__name__}: {error}.",
                hint=f"update or uninstall {package}.",
            ) from error
    return loaded


def import_modules_of(package: str) -> None:
    """Import every public module of a package, so that each registers its entries."""
    for module in iter_modules(sys.modules[package].__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")


def unknown(what: str, name: object, known: Iterable[str], advice: str | None = None) -> InputError:
    """Return the error for an unknown name. Its hint lists the closest known names, or else the advice."""
    names = list(known)
    return InputError(
        f"The {what} must be one of {', '.join(map(repr, names))}, got {name!r} instead.",
        hint=did_you_mean(name, names) or advice,
    )


def suggest_fraction(value: object) -> str | None:
    """Return a hint for a fraction that was given in percent.

    >>> suggest_fraction(50), suggest_fraction(0.0)
    ('did you mean 0.5?', None)
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"did you mean {value / 100:g}?" if is_number and 1 < value <= 100 else None  # type: ignore[operator]


def did_you_mean(name: object, known: Iterable[str]) -> str | None:
    """Return a question that suggests the closest known names, or None if none is close."""
    return question(nearest(name, known))


def nearest(name: object, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names with a similar spelling, ignoring case, closest first."""
    spelled = {each.lower(): each for each in known}
    return [spelled[near] for near in difflib.get_close_matches(str(name).lower(), spelled, n=most)]


def question(names: list[str]) -> str | None:
    """Return a question that suggests these names, or None if there are none."""
    return f"did you mean {' or '.join(names)}?" if names else None
