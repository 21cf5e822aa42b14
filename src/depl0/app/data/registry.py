"""Data sets by name, or from a user-defined function."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from depl0._util.registry import nearest, question
from depl0._util.user_code import UserCallable, is_importable, load_callable, shown_spec
from depl0.app.data.base import DataSettings, Target
from depl0.app.data.batches import Data, Source, open_source
from depl0.app.data.examples import PROTOCOL, as_dataset
from depl0.app.data.readers import READERS, read_folder
from depl0.errors import DataError, InputError

BUNDLED = ("digits",)
NAMES = (*READERS, "folder")
SPEC = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


def names() -> tuple[str, ...]:
    """Return the data sets as ``--data`` takes them, in alphabetical order."""
    return tuple(sorted(name if name in BUNDLED else f"{name}:DIR" for name in NAMES))


def open_data(
    spec: str,
    settings: DataSettings | None = None,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world: int = 1,
) -> Data:
    """Open a data set.

    Args:
        spec: a name and, after a colon, the folder of its files (``digits``, ``cifar10:DIR``), or a function of your
            own that returns training and test data (``my_package.data:make``, ``path/to/file.py:make``).
        settings: batch size, normalisation, augmentation and so on.
        device: where batches are needed.
        rank: which of the processes that share every batch this one is.
        world: the number of these processes.

    >>> data = open_data("digits", DataSettings(batch_size=64))
    >>> data.info.image_shape, data.info.train_size, data.info.test_size
    ((1, 8, 8), 1437, 360)
    >>> images, labels = next(data.train.epoch(0))
    >>> tuple(images.shape), labels.dtype
    ((64, 1, 8, 8), torch.int64)
    """
    target = Target(torch.device(device), rank, world)
    settings = DataSettings() if settings is None else settings
    name, colon, path = spec.partition(":")
    if name not in NAMES:
        return open_source(_own_source(_find_own(spec, name), settings), settings, target)
    if bool(path) == (name in BUNDLED) or (colon and not path):
        form = name if name in BUNDLED else f"{name}:DIR, with the folder of its files"
        raise InputError(f"the data set {name!r} must be written {form}, got {spec!r} instead.")
    folder = Path(path).expanduser()
    source = read_folder(folder, settings) if name == "folder" else READERS[name](folder)
    return open_source(source, settings, target)


def shown_data(spec: str) -> str:
    """Return a spec as it may be published: without folders of this machine.

    >>> shown_data("cifar10:/home/me/cifar"), shown_data("/home/me/mine.py:make"), shown_data("digits")
    ('cifar10', 'mine.py:make', 'digits')
    """
    name = spec.partition(":")[0]
    return name if name in NAMES else shown_spec(spec)


# -- user-defined functions --------------------------------------------------------------------------------------------


def _find_own(spec: str, name: str) -> UserCallable:
    match = SPEC.fullmatch(spec)
    if match is not None and (match["module"].endswith(".py") or is_importable(match["module"])):
        return load_callable(spec, "data")
    near = [known if known in BUNDLED else f"{known}:DIR" for known in nearest(name, NAMES, most=2)]
    raise InputError(
        f"The data must be one of {', '.join(names())} or MODULE:FUNCTION, got {spec!r} instead.",
        hint=question(near) or "a function of your own is my_package.data:make.",
    )


def _own_source(make: UserCallable, settings: DataSettings) -> Source:
    """Return the result of the user's function."""
    spec = make.spec
    make.check_call({}, "it is called without arguments; give its parameters a default.")
    made: Any = make()
    if isinstance(made, Mapping):  # a DatasetDict of Hugging Face
        test = next((name for name in ("test", "validation", "valid", "val") if name in made), None)
        if "train" not in made or test is None:
            raise DataError(
                f"{spec} must have the splits train and test (or validation), got {', '.join(made)} instead.",
                hint="return two splits: (data['…'], data['…']).",
            )
        made = made["train"], made[test]
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise DataError(f"{spec} must return {PROTOCOL}, got {type(made).__name__} instead.")
    if settings.image_size is not None:
        raise InputError(
            f"data.image_size must be left out for {spec}, whose examples have their own transforms, "
            f"got {settings.image_size!r} instead.",
            hint="torchvision.transforms.v2.Resize((height, width)) resizes images.",
        )
    train, test = (as_dataset(part, spec) for part in made)
    return Source(spec, train, test)
