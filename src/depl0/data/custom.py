"""``my_package.data:make`` and ``path/to/file.py:make``: a data set of the user's own."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depl0.data.base import Data, Target
from depl0.data.memory import Arrays, Part, check_images, check_labels, open_arrays, statistics
from depl0.data.settings import DataSettings
from depl0.errors import DataError, Depl0Error, InputError

SPEC = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
WANTED = "((train_images, train_labels), (test_images, test_labels)) or a depl0.data.Data"


def find(spec: str) -> Callable[..., object] | None:
    """Find the function that a spec names; None if it names no module or file at all."""
    match = SPEC.fullmatch(spec)
    if match is None:
        return None
    place, name = match["module"], match["name"]
    module = _from_file(Path(place).expanduser()) if place.endswith(".py") else _imported(place)
    if module is None:
        return None
    make = getattr(module, name, None)
    if not callable(make):
        found = "has no such name" if make is None else f"has {type(make).__name__} there"
        raise InputError(f"{name} in {place} must be a function that makes the data, but {place} {found}.")
    return make  # type: ignore[no-any-return]


def open_custom(spec: str, make: Callable[..., object], settings: DataSettings, target: Target) -> Data:
    """Call the user's function, and make batches of what it gives.

    It may take any of the keywords ``settings``, ``device``, ``rank`` and ``world``. It gives either a
    :class:`~depl0.data.Data`, or uint8 images (number, channels, height, width) and labels, both for training and for
    testing; these are then handled like a built-in data set, and normalised by their own mean and standard deviation
    unless the settings have others. The classes are 0 to the largest label.
    """
    offered = {"settings": settings, "device": target.device, "rank": target.rank, "world": target.world}
    parameters = inspect.signature(make).parameters
    try:
        made = make(**{name: value for name, value in offered.items() if name in parameters})
    except Depl0Error:
        raise
    except Exception as error:
        raise DataError(f"{spec} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, Data):
        return made
    pairs: Any = made
    try:
        (train_images, train_labels), (test_images, test_labels) = pairs
    except (TypeError, ValueError):
        raise DataError(f"{spec} must give {WANTED}, got {type(made).__name__} instead.") from None
    train = _tensor(spec, train_images), _tensor(spec, train_labels)
    test = _tensor(spec, test_images), _tensor(spec, test_labels)
    return open_arrays(_arrays(spec, train, test), settings, target)


def _arrays(spec: str, train: Part, test: Part) -> Arrays:
    check_images(*train, f"training images of {spec}")
    num_classes = int(train[1].max()) + 1
    check_labels(train[1], num_classes, f"the training labels of {spec}")
    mean, std = statistics(train[0])
    return Arrays(spec, train, test, num_classes, mean, std, augment="none")


def _tensor(spec: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{spec} must give {WANTED}, of tensors or arrays: {error}.") from error


def _imported(name: str) -> ModuleType | None:
    """Import a module that is installed or in the current folder; None if there is no such module."""
    here = str(Path.cwd())
    sys.path.append(here)  # a command does not look there by itself
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise DataError(f"{name} cannot be imported: {error}.") from error
    except Exception as error:
        raise DataError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    # Named after its whole path, so that two files of one name do not replace each other.
    name = f"_depl0_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise DataError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
