"""What every data set is: a description, and batches that are a pure function of seed, epoch and step."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from depl0._util.stopping import check_stop
from depl0.errors import InputError

Split: TypeAlias = Literal["validation", "test"]
MAX_COUNTED = 100_000
"""Classes whose images are counted."""


@final
@dataclass(frozen=True)
class DataInfo:
    """What a data set holds, as its batches give it."""

    name: str
    num_classes: int | None
    """None where targets are no class numbers."""
    class_names: tuple[str, ...] | None
    image_shape: tuple[int, int, int]
    """Channels, height and width of the images in a batch."""
    train_size: int
    """Number of training images, over all ranks, after ``limit_train`` and without those held out for validation."""
    test_size: int
    validation_size: int = field(default=0, kw_only=True)
    """Number of training images that are held out for choices."""
    class_counts: tuple[tuple[int, ...], tuple[int, ...]] | None = field(default=None, kw_only=True)
    """Training and test images of each class, where they can be told without reading the images."""
    reading: str = field(default="", kw_only=True)
    """How files become images of that shape, where it is not obvious."""
    mean: tuple[float, ...] | None = None
    """What images in [0, 1] are normalised by, one number for each channel."""
    std: tuple[float, ...] | None = None
    target_shape: tuple[int, ...] | None = ()
    """The shape of one image's target: () is a number, None several tensors."""
    labels: tuple[int, ...] | None = None
    """The whole numbers that occur in label maps, where they are known."""

    @property
    def num_outputs(self) -> int | None:
        """Return how many outputs a network for these data has: classes, or numbers in a vector; None: nobody knows."""
        if self.num_classes is not None or self.target_shape is None or len(self.target_shape) > 1:
            return self.num_classes
        return (*self.target_shape, 1)[0]

    def description(self) -> dict[str, Any]:
        """Return what someone must know who feeds images to a trained network, as plain lists and numbers."""
        return {
            "image_shape": list(self.image_shape),
            "num_classes": self.num_classes,
            "num_outputs": self.num_outputs,
            "target_shape": None if self.target_shape is None else list(self.target_shape),
            "class_names": None if self.class_names is None else list(self.class_names),
            "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std),
        }


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
    """Batches of normalised images and their labels or other targets, epoch after epoch.

    There is no state: an epoch begun again, or at a later step, gives the same batches bit by bit, and PyTorch's global
    random numbers are neither used nor changed.

    Args:
        size: images that this rank gets in one epoch.
        steps: batches that this rank gets in one epoch.
    """

    def __init__(self, size: int, steps: int) -> None:
        self.size = size
        self.steps = steps

    def epoch(self, number: int, first_step: int = 0) -> Iterator[tuple[Tensor, Any]]:
        """Give the batches of one epoch, from one of its steps on.

        Each is a float tensor (batch, channels, height, width) and its targets, both on the device: an int64 tensor
        (batch,) of class numbers, or what else the task takes, a tensor or a dict or tuple of tensors.
        """
        if type(number) is not int or number < 0:
            raise InputError(f"An epoch must be a whole number of at least 0, got {number!r} instead.")
        if type(first_step) is not int or not 0 <= first_step <= self.steps:
            raise InputError(
                f"The first step must be a whole number from 0 to {self.steps}, the steps of an epoch, "
                f"got {first_step!r} instead.",
                hint="batch size, data and number of processes must be those of the run that is resumed.",
            )
        return _until_stopped(self.batches_from(number, first_step))

    @abc.abstractmethod
    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Any]]:
        """Give the batches of one epoch from a step on; both numbers have been checked."""


def _until_stopped(batches: Iterator[tuple[Tensor, Any]]) -> Iterator[tuple[Tensor, Any]]:
    """Whatever goes through data, to score, evaluate or calibrate, can be stopped at any batch."""
    for batch in batches:
        check_stop()
        yield batch


@final
@dataclass(frozen=True)
class Data:
    """A data set, ready for training and testing."""

    info: DataInfo
    train: Batches
    test: Batches
    validation: Batches | None = None
    """training images that are held out for choices, if any (``DataSettings.validation``)"""
    plain: Batches | None = None
    """the batches of ``train`` without augmentation; None: nobody but the user's own code could give them"""

    @property
    def split(self) -> Split:
        """Return what choices are made on: ``"validation"`` where images are held out for that, else ``"test"``."""
        return "test" if self.validation is None else "validation"

    @property
    def for_calibration(self) -> Batches:
        """Return training images as the network will see images in use: without augmentation where that is possible."""
        return self.train if self.plain is None else self.plain

    @property
    def for_choices(self) -> Batches:
        """Return the batches of :attr:`split`."""
        return self.test if self.validation is None else self.validation


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
