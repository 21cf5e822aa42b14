"""Networks by a short text: built in, of torchvision, of timm, or of a user's own module or file.

============================  ==========================================================
``resnet56``                  a network of :mod:`depl0.models`
``torchvision:resnet18``      an image classifier of torchvision, untrained
``timm:resnet18``             a network of timm, untrained
``my_package.nets:make``      a callable of a module that can be imported
``path/to/file.py:make``      a callable of a file
============================  ==========================================================

A callable is given those of ``num_classes``, ``in_channels`` and ``image_size`` that its signature names.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from depl0._suggest import did_you_mean, unknown
from depl0.errors import InputError
from depl0.models import registry

FORMS = "write torchvision:resnet18, timm:resnet18, my_package.nets:make or path/to/file.py:make."


def build_model(spec: str, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """Build the network that ``spec`` describes, for these images and classes.

    >>> build_model("lenet5", num_classes=7, in_channels=1, image_size=28).fc2
    Linear(in_features=500, out_features=7, bias=True)
    """
    return factory(spec, num_classes, in_channels, image_size)()


def factory(spec: str, num_classes: int, in_channels: int, image_size: int) -> Callable[[], nn.Module]:
    """Give a function without arguments that builds the network anew at every call.

    The user's module or file is imported here, so that a wrong one is refused before anything else is done.
    """
    check_spec(spec)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    if ":" not in spec:
        arguments = _wanted(registry.MODELS.find(spec), sizes)
        return lambda: registry.build(spec, **arguments)
    library, _, name = spec.partition(":")
    if library == "torchvision":
        return _torchvision_factory(name, num_classes, in_channels)
    if library == "timm":
        return _timm_factory(name, num_classes, in_channels)
    return _user_factory(spec, sizes)


def check_spec(spec: str) -> None:
    """Refuse a text that cannot describe a network; nothing is imported for it."""
    where, colon, name = spec.rpartition(":")
    if not colon:
        if spec not in registry.MODELS:
            raise unknown("built-in model", spec, registry.names(), FORMS)
    elif not where or not name:
        raise InputError(
            f"model {spec!r} must have a name on both sides of the colon.",
            hint=FORMS,
        )


def _torchvision_factory(name: str, num_classes: int, in_channels: int) -> Callable[[], nn.Module]:
    models = _import_library("torchvision", "torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown("torchvision model", name, known, "torchvision.models.list_models() lists them.")
    if in_channels != 3:
        raise InputError(
            f"torchvision:{name} takes images of 3 channels, but the data has {in_channels}.",
            hint=f"timm:{name} may exist and takes any number; or write a callable that changes the first layer.",
        )

    def make() -> nn.Module:
        with _blamed_on(f"torchvision:{name}"):
            return _checked(models.get_model(name, weights=None, num_classes=num_classes), f"torchvision:{name}")

    return make


def _timm_factory(name: str, num_classes: int, in_channels: int) -> Callable[[], nn.Module]:
    timm = _import_library("timm", "timm")
    if not timm.is_model(name):
        raise _unknown("timm model", name, timm.list_models(), "timm.list_models() lists them.")

    def make() -> nn.Module:
        with _blamed_on(f"timm:{name}"):
            network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels)
            return _checked(network, f"timm:{name}")

    return make


def _import_library(package: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise InputError(
            f"{package} networks need {missing}, which is not installed.", f"pip install {missing}"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        # Compiled for another torch, it fails with "operator torchvision::nms does not exist".
        raise InputError(
            f"{package} is installed but cannot be imported beside torch {torch.__version__}: {error}.",
            hint="install the torchvision that was built for this torch; pytorch.org lists which fit together.",
        ) from error


def _user_factory(spec: str, sizes: dict[str, int]) -> Callable[[], nn.Module]:
    where, _, name = spec.rpartition(":")
    is_file = where.endswith(".py")
    folder = str(Path(where).resolve().parent) if is_file else os.getcwd()
    with _importable(folder):
        module = _load_file(Path(where), spec) if is_file else _load_module(where, spec)
    make = _callable_of(module, name, spec)
    arguments = _wanted(make, sizes)
    _check_call(make, arguments, spec)

    def build() -> nn.Module:
        with _importable(folder), _blamed_on(spec, module):
            network = make(**arguments)
        return _checked(network, spec)

    return build


def _load_file(path: Path, spec: str) -> ModuleType:
    """Import a file once in a process, as Python does with modules, so that its classes stay the same ones."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no file there"
        raise InputError(f"model {spec!r} needs the file {path}; found {found}.")
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
        with _blamed_on(spec, module):
            description.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(
            f"model {spec!r}: {name!r} is no name of a module.",
            hint="the name of a file must end in .py: path/to/file.py:callable.",
        )
    invalidate_caches()  # the module may be younger than this process
    with _blamed_on(spec):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            # Only where it is the module itself or a package above it; else one that it imports is missing.
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            raise InputError(
                f"model {spec!r}: there is no module {error.name}.",
                hint="install it, run from the folder that holds it, or write path/to/file.py:callable.",
            ) from error


def _callable_of(module: ModuleType, name: str, spec: str) -> Callable[..., object]:
    make: Callable[..., object] | None = vars(module).get(name)
    if not callable(make):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        found = "nothing" if make is None else f"a {type(make).__name__}"
        offered = did_you_mean(name, known) or f"it has {', '.join(known) or 'none'}."
        raise InputError(f"model {spec!r} must name a callable of {module.__file__}, found {found}.", hint=offered)
    return make


def _wanted(make: Callable[..., object], sizes: dict[str, int]) -> dict[str, int]:
    """Choose the sizes that a callable's signature names."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C tell nothing
        return {}
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: size for key, size in sizes.items() if key in parameters and parameters[key].kind in by_keyword}


def _check_call(make: Callable[..., object], arguments: dict[str, int], spec: str) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"model {spec!r} cannot be called: {error}.",
            hint="only num_classes, in_channels and image_size are passed; give the others a default.",
        ) from error


def _checked(network: object, spec: str) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise InputError(f"model {spec!r} must return a torch.nn.Module, got a {type(network).__name__} instead.")
    return network


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Let imports find the folder's modules meanwhile."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code took it off itself
            sys.path.remove(folder)


@contextmanager
def _blamed_on(spec: str, module: ModuleType | None = None) -> Iterator[None]:
    """Turn an error of the user's or a library's code into ours, with its file and line."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, None if module is None else module.__file__)
        raise InputError(f"model {spec!r} failed at {place}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, file: str | None) -> str:
    """Say where an error came up: its last line in ``file``, or else its last line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<frozen" not in frame.filename]
    frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"


def _unknown(what: str, name: str, known: Iterable[str], advice: str) -> InputError:
    return InputError(f"there is no {what} called {name!r}.", hint=did_you_mean(name, known) or advice)
