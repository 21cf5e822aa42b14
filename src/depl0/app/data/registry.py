"""Data sets by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from depl0._util.registry import Registry, nearest, question
from depl0._util.user_code import shown_spec
from depl0.app.data.base import Data, Target
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, InputError

Opener = Callable[[Path, DataSettings, Target], Data]
_O = TypeVar("_O", bound=Opener)


@dataclass(frozen=True)
class _Entry:
    opener: Opener
    needs_path: bool


DATA: Registry[_Entry] = Registry("data set")
"""Every registered data set by its name."""


def register(name: str, needs_path: bool = True) -> Callable[[_O], _O]:
    """Make a function that opens a data set known by a name: ``@register("cifar10")``.

    It is called with the path, the settings and the target. Without ``needs_path`` the data are bundled, and the path
    is the current folder.
    """
    return DATA.register(name, lambda opener: _Entry(opener, needs_path))


def names() -> tuple[str, ...]:
    """List how data sets are named, in alphabetical order."""
    return tuple(sorted(map(_written, DATA)))


def open_data(
    spec: str,
    settings: DataSettings | None = None,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world: int = 1,
) -> Data:
    """Open a data set.

    Args:
        spec: a name and, after a colon, where the files are (``digits``, ``cifar10:DIR``), or a function of your own
            (``my_package.data:make``, ``path/to/file.py:make``).
        settings: batch size, normalisation, augmentation and so on.
        device: where the batches are wanted.
        rank: which of the processes that share every batch this one is.
        world: how many there are.

    >>> data = open_data("digits", DataSettings(batch_size=64))
    >>> data.info.image_shape, data.info.train_size, data.info.test_size
    ((1, 8, 8), 1437, 360)
    >>> images, labels = next(data.train.epoch(0))
    >>> tuple(images.shape), labels.dtype
    ((64, 1, 8, 8), torch.int64)
    """
    from depl0.app.data import custom

    target = Target(_checked_device(device), rank, world)
    settings = DataSettings() if settings is None else settings
    name, colon, path = spec.partition(":")
    entry = DATA.get(name)
    if entry is None:
        make = custom.find(spec)
        if make is None:
            raise _unknown(spec, name)
        made = _with_validation(custom.open_custom(make, settings, target), settings, spec)
        return custom.checked(made, spec)
    if entry.needs_path and not path:
        raise InputError(
            f"The data set {name!r} needs the folder of its files, got {spec!r} instead.", hint=f"write {name}:DIR."
        )
    if not entry.needs_path and colon:
        raise InputError(f"The data set {name!r} is bundled and takes no folder, got {spec!r}.", hint=f"write {name}.")
    return _with_validation(entry.opener(Path(path).expanduser(), settings, target), settings, spec)


def _with_validation(data: Data, settings: DataSettings, spec: str) -> Data:
    """Leave validation images out where none are asked for; refuse data that were asked for some and have none."""
    if settings.validation == 0:
        return data if data.validation is None else dataclasses.replace(data, validation=None)
    if data.validation is None:
        raise DataError(
            f"The data setting 'validation' is {settings.validation:g}, but the Data of {spec} has no validation "
            "images, and its batches cannot be divided.",
            hint="hold out the share settings.validation of the training images, and give Data(info, train, test, "
            "validation); or give images and targets instead of a Data.",
        )
    return data


def with_path(spec: str, change: Callable[[str], str]) -> str:
    """Return a spec with another path of its files, where it has one: ``cifar10:DIR``."""
    name, colon, path = spec.partition(":")
    return f"{name}:{change(path)}" if colon and name in DATA and DATA[name].needs_path else spec


def shown_data(spec: str) -> str:
    """Return a spec as it may be published: without folders of this machine.

    >>> shown_data("cifar10:/home/me/cifar"), shown_data("/home/me/mine.py:make"), shown_data("digits")
    ('cifar10', 'mine.py:make', 'digits')
    """
    name = spec.partition(":")[0]
    return name if name in DATA else shown_spec(spec)


def _unknown(spec: str, name: str) -> InputError:
    near = [_written(known) for known in nearest(name, DATA, most=2)]
    hint = question(near) or "a function of your own is my_package.data:make."
    return InputError(f"The data must be one of {', '.join(names())} or MODULE:FUNCTION, got {spec!r} instead.", hint)


def _written(name: str) -> str:
    """Write a name as ``--data`` takes it."""
    return f"{name}:DIR" if DATA[name].needs_path else name


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"The device {str(device)!r} cannot be used: {reason}", hint="use 'cpu'.") from error
    return chosen
