"""Callables of the user's own by a short text, ``my_package.nets:make`` or ``path/to/file.py:make``, and which may run.

Code that a file from elsewhere names runs only if this user has let it. What may run is remembered in the cache folder:
the code of every run that was started here. ``--trust-code`` adds what a command meets.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar, final

from depl0._util.io import atomic_write, cache_folder
from depl0._util.registry import did_you_mean
from depl0.errors import Depl0Error, InputError

_V = TypeVar("_V")
_T = TypeVar("_T")


@final
@dataclass(frozen=True)
class UserCallable:
    """A callable that a spec names. Errors of its code are raised as ours, with their file and line."""

    what: str
    """what it makes, as errors call it: model, data, task"""
    spec: str
    call: Callable[..., object]
    module: ModuleType
    folder: str

    def __call__(self, **arguments: object) -> object:
        """Call it; modules beside its own can be imported meanwhile."""
        with _importable(self.folder), wrap_user_errors(self.what, self.spec, self.module):
            return self.call(**arguments)

    def wanted(self, offered: Mapping[str, _V]) -> dict[str, _V]:
        """Choose the arguments that its signature names."""
        return wanted(self.call, offered)

    def check_call(self, arguments: Mapping[str, object], hint: str) -> None:
        """Refuse arguments that its signature does not take, before it is called."""
        try:
            signature = inspect.signature(self.call)
        except (TypeError, ValueError):  # some callables written in C tell nothing
            return
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise InputError(f"{self.what} {self.spec!r} cannot be called: {error}.", hint=hint) from error


def load_callable(spec: str, what: str) -> UserCallable:
    """Import the module or file that a spec names, and find its callable; ``what`` is what errors call it."""
    where, _, name = spec.rpartition(":")
    is_file, path = where.endswith(".py"), Path(where).expanduser()
    folder = str(path.resolve().parent) if is_file else os.getcwd()
    with _importable(folder):
        module = _load_file(path, spec, what) if is_file else _load_module(where, spec, what)
    return UserCallable(what, spec, _callable_of(module, name, spec, what), module, folder)


def load_class(spec: str, what: str, base: type[_T]) -> type[_T]:
    """Import a class of the user's own that a spec names; refuse one that is no ``base``, or lacks a part of it."""
    found = load_callable(spec, what).call
    wanted = f"{base.__module__.rpartition('.')[0]}.{base.__name__}"
    if not (inspect.isclass(found) and issubclass(found, base)):
        said = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise InputError(
            f"{what} {spec!r} must be a class below {wanted}, got {said} instead.",
            hint=f"let the class inherit from {wanted}.",
        )
    check_concrete(found, spec, what)
    return found


def check_concrete(found: object, spec: str, what: str) -> None:
    """Refuse a class that lacks a method."""
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise InputError(f"{what} {spec!r} lacks {missing}.", hint="the documentation has a whole one.")


def shown_spec(spec: str) -> str:
    """Return a spec as it may be published: without the folder of a file on this machine.

    >>> shown_spec("/home/me/nets.py:make"), shown_spec("my_package.nets:make"), shown_spec("resnet20")
    ('nets.py:make', 'my_package.nets:make', 'resnet20')
    """
    where, colon, name = spec.rpartition(":")
    return f"{Path(where).name}:{name}" if colon and where.endswith(".py") else spec


def code_file(spec: str) -> str | None:
    """Return the file that :func:`load_callable` would run, for a module that of its outermost package; None: none."""
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        file = Path(where).expanduser()
        return str(file.resolve()) if file.is_file() else None
    invalidate_caches()
    with _importable(os.getcwd()), suppress(ValueError):
        found = find_spec(where.partition(".")[0])
        if found is not None:  # a namespace package has folders only
            return str(Path(found.origin or next(iter(found.submodule_search_locations or [where]))).resolve())
    return None


def is_importable(name: str) -> bool:
    """Tell whether a module, or the package it should be in, is installed or in the current folder."""
    invalidate_caches()
    with _importable(os.getcwd()), suppress(ValueError):  # a module that somebody made by hand has no spec
        return find_spec(name.partition(".")[0]) is not None
    return name in sys.modules


def wanted(call: Callable[..., object], offered: Mapping[str, _V]) -> dict[str, _V]:
    """Choose the arguments that a callable's signature names."""
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: value for key, value in offered.items() if key in parameters and parameters[key].kind in by_keyword}


@contextmanager
def wrap_user_errors(what: str, spec: str, module: ModuleType | None = None) -> Iterator[None]:
    """Turn an error of the user's or a library's code into ours, with its file and line."""
    try:
        yield
    except Depl0Error:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, None if module is None else module.__file__)
        raise InputError(f"{what} {spec!r} failed at {place}: {type(error).__name__}: {error}") from error


def _load_file(path: Path, spec: str, what: str) -> ModuleType:
    """Import a file once in a process, as Python does with modules, so that its classes stay the same ones."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no file there"
        raise InputError(f"{what} {spec!r} needs the file {path}; found {found}.")
    resolved = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    description = spec_from_file_location(name, resolved)
    assert description is not None and description.loader is not None  # the name ends in .py
    module = module_from_spec(description)
    # Dataclasses and typing look the module of a class up while it is being executed.
    sys.modules[name] = module
    try:
        with wrap_user_errors(what, spec, module):
            description.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str, spec: str, what: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(
            f"{what} {spec!r}: {name!r} is no name of a module.",
            hint="the name of a file must end in .py: path/to/file.py:callable.",
        )
    invalidate_caches()  # the module may be younger than this process
    with wrap_user_errors(what, spec):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            # Only where it is the module itself or a package above it; else one that it imports is missing.
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            raise InputError(
                f"{what} {spec!r}: there is no module {error.name}.",
                hint="install it, run from the folder that holds it, or write path/to/file.py:callable.",
            ) from error


def _callable_of(module: ModuleType, name: str, spec: str, what: str) -> Callable[..., object]:
    make: Callable[..., object] | None = vars(module).get(name)
    if not callable(make):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        found = "nothing" if make is None else f"a {type(make).__name__}"
        offered = did_you_mean(name, known) or f"it has {', '.join(known) or 'none'}."
        raise InputError(f"{what} {spec!r} must name a callable of {module.__file__}, found {found}.", hint=offered)
    return make


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Let imports find the folder's modules meanwhile."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code took it off itself
            sys.path.remove(folder)


def _place(error: BaseException, file: str | None) -> str:
    """Say where an error came up: its last line in ``file``, or else its last line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
    frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"


_remembered: set[Path] = set()  # for where the cache folder cannot be written
_everything = False


@contextmanager
def trusting(everything: bool) -> Iterator[None]:
    """Let all code run meanwhile, and remember it; or as always."""
    global _everything
    before, _everything = _everything, everything
    try:
        yield
    finally:
        _everything = before


def trust_from_now_on(identity: str) -> None:
    """Let some code run from now on."""
    path = _trust_file(identity)
    _remembered.add(path)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, f"{identity}\n".encode())


def check_trusted(identity: str, message: str) -> None:
    """Refuse code that nobody has let run."""
    path = _trust_file(identity)
    if _everything:
        trust_from_now_on(identity)
    elif path not in _remembered and not path.is_file():
        raise InputError(message, hint="read it first; --trust-code lets it run, now and later.")


def _trust_file(identity: str) -> Path:
    return cache_folder() / "trusted" / hashlib.sha256(identity.encode()).hexdigest()[:32]
