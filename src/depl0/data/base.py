"""What every data set is: a description, and batches that are a pure function of seed, epoch and step."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, final

import torch
from torch import Tensor

from depl0.errors import InputError

AUGMENTATIONS = ("default", "none", "crop", "crop-flip", "imagenet")
MAX_SEED = 2**32 - 1
MAX_COUNTED = 100_000
"""Classes whose images are counted."""


@final
@dataclass(frozen=True)
class DataInfo:
    """What a data set holds, as its batches give it."""

    name: str
    num_classes: int
    class_names: tuple[str, ...] | None
    image_shape: tuple[int, int, int]
    """Channels, height and width of the images in a batch."""
    train_size: int
    """Number of training images, over all ranks and after ``limit_train``."""
    test_size: int
    class_counts: tuple[tuple[int, ...], tuple[int, ...]] | None = field(default=None, kw_only=True)
    """Training and test images of each class, where they can be told without reading the images."""
    mean: tuple[float, ...] | None = None
    """What images in [0, 1] are normalised by, one number for each channel."""
    std: tuple[float, ...] | None = None

    def description(self) -> dict[str, Any]:
        """Return what someone must know who feeds images to a trained network, as plain lists and numbers."""
        return {
            "image_shape": list(self.image_shape),
            "num_classes": self.num_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std),
        }


@final
@dataclass(frozen=True)
class DataSettings:
    """How the images of a data set become batches.

    Args:
        batch_size: training images in one step, over all ranks.
        eval_batch_size: test images in one batch of one rank.
        mean: what is taken from images in [0, 1], one number for each channel; None is the data set's own.
        std: what the images are divided by after that; None is the data set's own.
        augment: ``"none"``; ``"crop"``, a random crop out of the zero-padded image; ``"crop-flip"``, the same and
            mirrored half of the time; ``"imagenet"``, a random part of random shape, resized, and mirrored half of the
            time (``folder:`` only); ``"default"``, what is usual for the data set.
        crop_padding: zeros on each side of the image before it is cropped.
        image_size: height and width that images are resized to; None is the data set's own.
        limit_train: use only so many training images, the same ones for every seed; 0 is all.
        workers: processes that decode image files; 0 decodes in this one. Data sets in memory need none.
        seed: what the order and the augmentation of the training images depend on, besides epoch and step.

    >>> DataSettings(batch_size=0)
    Traceback (most recent call last):
        ...
    depl0.errors.InputError: The data setting 'batch_size' must be a whole number of at least 1, got 0 instead.
    """

    batch_size: int = 128
    eval_batch_size: int = 500
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: str = "default"
    crop_padding: int = 4
    image_size: int | None = None
    limit_train: int = 0
    workers: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1)
        _check_whole("eval_batch_size", self.eval_batch_size, 1)
        _check_whole("crop_padding", self.crop_padding, 0)
        _check_whole("limit_train", self.limit_train, 0)
        _check_whole("workers", self.workers, 0)
        _check_whole("seed", self.seed, 0, MAX_SEED)
        if self.image_size is not None:
            _check_whole("image_size", self.image_size, 1)
        # Files give lists; frozen data holds tuples.
        object.__setattr__(self, "mean", _checked_numbers("mean", self.mean, positive=False))
        object.__setattr__(self, "std", _checked_numbers("std", self.std, positive=True))
        if self.augment not in AUGMENTATIONS:
            allowed = ", ".join(repr(name) for name in AUGMENTATIONS)
            nearest = get_close_matches(str(self.augment), AUGMENTATIONS, n=1)
            raise InputError(
                f"The data setting 'augment' must be one of {allowed}, got {self.augment!r} instead.",
                hint=f"did you mean {nearest[0]!r}?" if nearest else None,
            )


@final
@dataclass(frozen=True)
class Target:
    """Where batches go: the device, and which of how many equal processes this one is."""

    device: torch.device
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if type(self.world) is not int or self.world < 1:
            raise InputError(f"'world' must be a whole number of at least 1, got {self.world!r} instead.")
        if type(self.rank) is not int or not 0 <= self.rank < self.world:
            raise InputError(
                f"'rank' must be a whole number from 0 to {self.world - 1} (world is {self.world}), "
                f"got {self.rank!r} instead."
            )


class Batches(abc.ABC):
    """Batches of normalised images and their labels, epoch after epoch.

    There is no state: an epoch begun again, or at a later step, gives the same batches bit by bit, and PyTorch's global
    random numbers are neither used nor changed.

    Args:
        size: images that this rank gets in one epoch.
        steps: batches that this rank gets in one epoch.
    """

    def __init__(self, size: int, steps: int) -> None:
        self.size = size
        self.steps = steps

    def epoch(self, number: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the batches of one epoch, from one of its steps on.

        Each is a float tensor (batch, channels, height, width) and an int64 tensor (batch,), both on the device.
        """
        if type(number) is not int or number < 0:
            raise InputError(f"An epoch must be a whole number of at least 0, got {number!r} instead.")
        if type(first_step) is not int or not 0 <= first_step <= self.steps:
            raise InputError(
                f"The first step must be a whole number from 0 to {self.steps}, the steps of an epoch, "
                f"got {first_step!r} instead.",
                hint="batch size, data and number of processes must be those of the run that is resumed.",
            )
        return self.batches_from(number, first_step)

    @abc.abstractmethod
    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the batches of one epoch from a step on; both numbers have been checked."""


@final
@dataclass(frozen=True)
class Data:
    """A data set, ready for training and testing."""

    info: DataInfo
    train: Batches
    test: Batches


def counted(num_classes: int | None, train: Any, test: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return how many labels of each class two parts have; None where targets are no classes, or too many.

    >>> counted(3, [0, 0, 2], [1])
    ((2, 0, 1), (0, 1, 0))
    """
    if num_classes is None or num_classes > MAX_COUNTED:
        return None
    first, second = (
        tuple(torch.bincount(torch.as_tensor(labels, dtype=torch.int64), minlength=num_classes).tolist())
        for labels in (train, test)
    )
    return first, second


def _check_whole(field: str, value: object, least: int, most: int | None = None) -> None:
    if type(value) is int and value >= least and (most is None or value <= most):
        return
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"The data setting {field!r} must be a whole number {allowed}, got {value!r} instead.")


def _checked_numbers(field: str, values: Sequence[float] | None, positive: bool) -> tuple[float, ...] | None:
    if values is None:
        return None
    if isinstance(values, (tuple, list)) and values and all(_is_number(value, positive) for value in values):
        return tuple(float(value) for value in values)
    kind = "numbers above 0" if positive else "numbers"
    raise InputError(
        f"The data setting {field!r} must be {kind}, one for each channel, got {values!r} instead.",
        hint="images are scaled to [0, 1] first, so both mean and std are given on that scale.",
    )


def _is_number(value: object, positive: bool) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and (not positive or value > 0)  # type: ignore[arg-type, operator]
