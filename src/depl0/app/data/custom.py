"""``my_package.data:make`` and ``path/to/file.py:make``: a data set of the user's own."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from depl0._util.user_code import UserCallable, is_importable, load_callable
from depl0.app.data.base import Data, Target
from depl0.app.data.datasets import open_datasets
from depl0.app.data.examples import is_hugging_face, is_hugging_face_dict, splits_of
from depl0.app.data.loaders import open_loaders
from depl0.app.data.memory import Arrays, Part, check_images, check_labels, open_arrays, statistics
from depl0.app.data.settings import DataSettings
from depl0.app.data.targets import are_classes, read_targets
from depl0.errors import DataError

SPEC = re.compile(r"(?P<module>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
WANTED = "((train_images, train_labels), (test_images, test_labels)) or a depl0.app.data.Data"
ALSO = "two Datasets, two DataLoaders or a DatasetDict of Hugging Face do as well; docs/data.md shows them all."


def find(spec: str) -> UserCallable | None:
    """Find the function that a spec names; None if it names no module or file at all."""
    match = SPEC.fullmatch(spec)
    if match is None or not (match["module"].endswith(".py") or is_importable(match["module"])):
        return None
    return load_callable(spec, "data")


def open_custom(make: UserCallable, settings: DataSettings, target: Target) -> Data:
    """Call the user's function, and make batches of what it gives.

    It may take any of the keywords ``settings``, ``device``, ``rank`` and ``world``. It gives a pair, for training and
    for testing, of arrays (uint8 images (number, channels, height, width) and targets), of torch Datasets, of
    DataLoaders or of splits of Hugging Face; or all of these splits; or a :class:`~depl0.app.data.Data`. Arrays are
    handled like a built-in data set, and normalised by their own mean and standard deviation unless the settings
    have others.

    Targets that are one whole number for each image are class numbers, from 0 to the largest. All others are left to
    the task: numbers (number,) or (number, length) as floats, label maps (number, height, width), and dicts or tuples
    of tensors, each of which has the images as its first dimension.
    """
    offered = {"settings": settings, "device": target.device, "rank": target.rank, "world": target.world}
    arguments, spec = make.wanted(offered), make.spec
    make.check_call(arguments, "only settings, device, rank and world are passed; give the others a default.")
    made = make(**arguments)
    if isinstance(made, Data):
        return made
    pairs: Any = made
    if is_hugging_face_dict(made):
        pairs = splits_of(pairs, spec)
    if isinstance(pairs, tuple | list) and len(pairs) == 2:
        train, test = pairs
        if isinstance(train, DataLoader) or isinstance(test, DataLoader):
            return open_loaders(spec, train, test, settings, target)
        if all(isinstance(part, Dataset) or is_hugging_face(part) for part in pairs):
            return open_datasets(spec, train, test, settings, target)
    try:
        (train_images, train_labels), (test_images, test_labels) = pairs
    except (TypeError, ValueError):
        raise DataError(f"{spec} must give {WANTED}, got {type(made).__name__} instead.", hint=ALSO) from None
    refuse = partial(_no_array, spec)
    train = _tensor(spec, train_images), read_targets(train_labels, refuse)
    test = _tensor(spec, test_images), read_targets(test_labels, refuse)
    return open_arrays(_arrays(spec, train, test), settings, target)


def _arrays(spec: str, train: Part, test: Part) -> Arrays:
    check_images(train[0], f"training images of {spec}")
    mean, std = statistics(train[0])
    num_classes = None
    if are_classes(train[1]) and len(train[1]):
        num_classes = int(train[1].max()) + 1
        hint = "numbers to predict, rather than classes, are given as floats."
        check_labels(train[1], num_classes, f"the training labels of {spec}", hint)
    return Arrays(spec, train, test, num_classes, mean, std, augment="none")


def _tensor(spec: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise _no_array(spec, error) from error


def _no_array(spec: str, error: object) -> DataError:
    return DataError(f"{spec} must give {WANTED}, of tensors or arrays: {error}.")
