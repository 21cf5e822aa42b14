"""User callables specified as ``my_package.nets:make`` or ``path/to/file.py:make``."""

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
from typing import Any, TypeVar, final

from depl0._util.registry import did_you_mean
from depl0.errors import Depl0Error, InputError

_V = TypeVar("_V")
_T = TypeVar("_T")


@final
@dataclass(frozen=True)
class UserCallable:
    """A callable that a spec names. Errors in its code are raised as depl0 errors, with their file and line."""

    what: str
    """kind of its result, as named in errors: model, data, task"""
    spec: str
    call: Callable[..., object]
    module: ModuleType
    folder: str

    def __call__(self, **arguments: object) -> object:
        """Call it. Modules in the same folder can be imported during the call."""
        with importable(self.folder), wrap_user_errors(self.what, self.spec, self.module):
            return self.call(**arguments)

    def wanted(self, offered: Mapping[str, _V]) -> dict[str, _V]:
        """Return the arguments that its signature names."""
        return wanted(self.call, offered)

    def check_call(self, arguments: Mapping[str, object], hint: str) -> None:
        """Raise before the call if its signature does not accept these arguments."""
        try:
            signature = inspect.signature(self.call)
        except (TypeError, ValueError):  # some callables written in C have no signature
            return
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise InputError(f"{self.what} {self.spec!r} cannot be called: {error}.", hint=hint) from error


def load_callable(spec: str, what: str) -> UserCallable:
    """Import the module or file that a spec names, and return its callable. ``what`` is its kind in error messages."""
    where, _, name = spec.rpartition(":")
    is_file, path = where.endswith(".py"), Path(where).expanduser()
    folder = str(path.resolve().parent) if is_file else os.getcwd()
    with importable(folder):
        module = _load_file(path, spec, what) if is_file else _load_module(where, spec, what)
    return UserCallable(what, spec, _callable_of(module, name, spec, what), module, folder)


def load_class(spec: str, what: str, base: type[_T]) -> type[_T]:
    """Import a user-defined class. Raise if it is not a subclass of ``base`` or lacks one of its methods."""
    found = load_callable(spec, what).call
    wanted = f"{base.__module__.rpartition('.')[0]}.{base.__name__}"
    if not (inspect.isclass(found) and issubclass(found, base)):
        said = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise InputError(
            f"{what} {spec!r} must be a class below {wanted}, got {said} instead.",
            hint=f"make the class inherit from {wanted}.",
        )
    check_concrete(found, spec, what)
    return found


def check_concrete(found: object, spec: str, what: str) -> None:
    """Raise if a class lacks a method."""
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise InputError(f"{what} {spec!r} lacks {missing}.", hint="the documentation has a whole one.")


def shown_spec(spec: str) -> str:
    """Return a spec that can be published, without the local folder of a file.

    >>> shown_spec("/home/me/nets.py:make"), shown_spec("my_package.nets:make"), shown_spec("resnet20")
    ('nets.py:make', 'my_package.nets:make', 'resnet20')
    """
    where, colon, name = spec.rpartition(":")
    return f"{Path(where).name}:{name}" if colon and where.endswith(".py") else spec


def is_importable(name: str) -> bool:
    """Return True if a module, or its parent package, is installed or in the current folder."""
    invalidate_caches()
    with importable(os.getcwd()), suppress(ValueError):  # a module created at run time has no spec
        return find_spec(name.partition(".")[0]) is not None
    return name in sys.modules


def wanted(call: Callable[..., object], offered: Mapping[str, _V]) -> dict[str, _V]:
    """Return the arguments that a callable's signature names."""
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: value for key, value in offered.items() if key in parameters and parameters[key].kind in by_keyword}


@contextmanager
def wrap_user_errors(what: str, spec: str, module: ModuleType | None = None) -> Iterator[None]:
    """Convert errors of user or library code to depl0 errors, with their file and line."""
    try:
        yield
    except Depl0Error:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, None if module is None else module.__file__)
        raise InputError(f"{what} {spec!r} failed at {place}: {type(error).__name__}: {error}") from error


def call_of_user(argument: str, when: str, function: Callable[..., _T], *args: Any) -> _T:
    """Call a function that the user passed as an argument; ``when`` is part of the error if it fails."""
    from depl0._util.process import with_user_defaults  # imports torch, which help and errors need not wait for

    name = getattr(function, "__qualname__", type(function).__name__)
    with wrap_user_errors(f"{when}, {argument}", name):
        return with_user_defaults(function, *args)


def _load_file(path: Path, spec: str, what: str) -> ModuleType:
    """Import a file once per process, as Python does with modules, so that its classes keep their identity."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no file there"
        raise InputError(f"{what} {spec!r} needs the file {path}; found {found}.")
    resolved = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    description = spec_from_file_location(name, resolved)
    assert description is not None and description.loader is not None  # because the name ends in .py
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
            f"{what} {spec!r}: {name!r} is not the name of a module.",
            hint="the name of a file must end in .py: path/to/file.py:callable.",
        )
    invalidate_caches()  # the module may have been written after this process started
    with wrap_user_errors(what, spec):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            # Only if the module itself or one of its parent packages is missing; otherwise one of its imports is.
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
def importable(folder: str) -> Iterator[None]:
    """Add a folder to the import path within the context."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # user code has already removed it
            sys.path.remove(folder)


def _place(error: BaseException, file: str | None) -> str:
    """Describe where an error occurred: the innermost line in ``file``, or else the innermost line of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
    frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
