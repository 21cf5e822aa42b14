"""``my_package.data:make`` and ``path/to/file.py:make``: a data set of the user's own, its labels checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from depl0._util.user_code import UserCallable, is_importable, load_callable
from depl0.app.data.base import Batches, Data, Target
from depl0.app.data.datasets import is_hugging_face, is_hugging_face_dict, open_datasets, splits_of
from depl0.app.data.loaders import open_loaders
from depl0.app.data.memory import Arrays, MemoryBatches, Part, check_images, check_labels, open_arrays, statistics
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


MAX_EMPTY_CLASSES = 100_000
"""So many classes are taken whatever the number of images; more would be a mistake that costs all memory."""


def checked(data: Data, spec: str) -> Data:
    """Return data whose labels are checked: the number of classes at once, each batch when it comes.

    Targets that are no class numbers are left alone.
    """
    classes: Any = data.info.num_classes
    images = data.info.train_size
    if classes is None:
        return data
    if classes < 1 or classes > max(MAX_EMPTY_CLASSES, images):
        raise DataError(
            f"{spec} has labels for {classes:,} classes, but only {images:,} training images.",
            hint="number the classes 0, 1, 2, … without gaps: the largest label says how many there are.",
        )
    return dataclasses.replace(
        data,
        train=_checked(data.train, classes, f"the training images of {spec}"),
        test=_checked(data.test, classes, f"the test images of {spec}"),
        validation=None
        if data.validation is None
        else _checked(data.validation, classes, f"the validation images of {spec}"),
    )


def _checked(batches: Batches, num_classes: int, where: str) -> Batches:
    """Wrap batches; those of arrays are left alone, for all their labels were checked when they were made."""
    return batches if isinstance(batches, MemoryBatches) else CheckedBatches(batches, num_classes, where)


@final
class CheckedBatches(Batches):
    """The batches of somebody else, with labels that are sure to be classes.

    On a CPU every batch is looked at. On another device only the first one of an epoch is, since each look would wait
    for the device.
    """

    def __init__(self, batches: Batches, num_classes: int, where: str) -> None:
        super().__init__(batches.size, batches.steps)
        self._batches = batches
        self._num_classes = num_classes
        self._where = where

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Any]]:
        """Give the batches of one epoch from a step on."""
        for step, (images, labels) in enumerate(self._batches.batches_from(epoch, first_step), start=first_step):
            if not isinstance(labels, Tensor):
                raise self._refusal("be a tensor", type(labels).__name__, epoch, step)
            if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
                found = f"{str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
                raise self._refusal("be whole numbers of shape (number,)", found, epoch, step)
            if len(labels) != len(images):
                raise self._refusal(f"be as many as images ({len(images)})", str(len(labels)), epoch, step)
            whole = labels.to(torch.int64)
            if (whole.device.type == "cpu" or step == first_step) and len(whole):
                self._check(whole, epoch, step)
            yield images, whole

    def _check(self, labels: Tensor, epoch: int, step: int) -> None:
        smallest, largest = torch.stack(torch.aminmax(labels)).tolist()
        if smallest < 0 or largest >= self._num_classes:
            found = smallest if smallest < 0 else largest
            raise self._refusal(f"be from 0 to {self._num_classes - 1}", str(found), epoch, step)

    def _refusal(self, wanted: str, found: str, epoch: int, step: int) -> DataError:
        return DataError(
            f"The labels of {self._where} must {wanted}, got {found} in batch {step} of epoch {epoch} instead.",
            hint="info.num_classes of the Data says how many classes there are; the first one is 0.",
        )
