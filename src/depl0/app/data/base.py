"""Interface of data sets: settings, a description, and batches that are a pure function of seed, epoch and step."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, final, get_args

import annotated_types as at
import torch
from torch import Tensor

from depl0._util.progress import check_stop
from depl0.app.schema import Above0, BelowOne, Count, Number, Positive, Schema, Seed, ShareAbove0
from depl0.errors import DataError, InputError

Augmentation: TypeAlias = Literal["default", "none", "crop", "crop-flip", "imagenet"]
AUGMENTATIONS = get_args(Augmentation)
Split: TypeAlias = Literal["validation", "test"]


class DataFields(Schema):
    """How examples become batches: the fields that recipes and :class:`DataSettings` share."""

    batch_size: Positive = 128
    """Training examples per step, over all processes."""
    eval_batch_size: Positive = 500
    """Test examples per batch and process."""
    mean: Annotated[tuple[Number, ...], at.MinLen(1)] | None = None
    """Subtracted from images in [0, 1], one number per channel (default: the data set's own)."""
    std: Annotated[tuple[Above0, ...], at.MinLen(1)] | None = None
    """Images are divided by it, one number per channel (default: the data set's own)."""
    augment: Augmentation = "default"
    """crop: random crop of the zero-padded image; crop-flip: also mirrored half of the time; imagenet: random resized
    crop, mirrored half of the time (folder: only); default: the usual choice for the data set."""
    image_size: Positive | tuple[Positive, Positive] | None = None
    """Resize images to this side, or to height and width (default: the data set's own size; for folder: the network's
    own, else that of the files if all have the same small size, else 224)."""
    crop_share: ShareAbove0 | None = None
    """Fraction of a test image's side that the centre crop keeps (folder: only; default: the network's own, else
    0.875). Images of the wanted size are neither resized nor cropped."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """How image files are resized (folder: only; default: the network's own, else bilinear)."""
    limit_train: Count = 0
    """Use only this many training examples, the same for every seed; 0: all."""
    limit_test: Count = 0
    """Use only this many test examples, the same for every seed; 0: all."""
    validation: BelowOne = 0.0
    """Fraction of the training examples held out for choices, the same for every seed; the test examples are used at
    the end only."""
    workers: Count | None = None
    """Processes that read examples from disk; 0: this process (default: the number of free cores, at most 8)."""

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width that images are resized to; None: images keep their size."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    def settings(self, seed: int) -> DataSettings:
        """Return the same settings with a seed."""
        return DataSettings(seed=seed, **{name: getattr(self, name) for name in DataFields.model_fields})


@final
class DataSettings(DataFields):
    """Settings of :func:`~depl0.app.data.open_data`: :class:`DataFields`, and the seed of order and augmentation."""

    seed: Seed = 0
    """Seed of the order and augmentation of training examples."""


@final
@dataclass(frozen=True)
class DataInfo:
    """Description of a data set, as its batches provide it."""

    name: str
    num_classes: int | None
    """None if targets are not class indices"""
    class_names: tuple[str, ...] | None
    image_shape: tuple[int, int, int] | None
    """channels, height and width; None if the network's input is not one image"""
    train_size: int
    """training examples over all ranks, after ``limit_train`` and without those held out for validation"""
    test_size: int
    validation_size: int = field(default=0, kw_only=True)
    """training examples held out for choices"""
    class_counts: tuple[tuple[int, ...], tuple[int, ...]] | None = field(default=None, kw_only=True)
    """training and test examples of each class, if targets are classes"""
    input_shapes: str = field(default="", kw_only=True)
    """the inputs of one example, if they are not one image"""
    mean: tuple[float, ...] | None = None
    """mean by which images in [0, 1] are normalised, one number per channel"""
    std: tuple[float, ...] | None = None
    target_shape: tuple[int, ...] | None = ()
    """the shape of one target: () is a number, None several tensors"""

    @property
    def num_outputs(self) -> int | None:
        """Return the number of outputs a network needs: classes, or the length of target vectors; None if unknown."""
        if self.num_classes is not None or self.target_shape is None or len(self.target_shape) > 1:
            return self.num_classes
        return (*self.target_shape, 1)[0]

    @property
    def shape(self) -> str:
        """Return the inputs of one example as text: ``3×32×32``."""
        return self.input_shapes if self.image_shape is None else "×".join(map(str, self.image_shape))

    def warnings(self) -> Iterator[str]:
        """Yield the reasons why the result of a run on this data would be meaningless, one sentence each."""
        if self.num_classes == 1:
            yield "the data has one class: every network gets 100 %."
        if self.test_size == 1:
            yield "the data has one test image: the accuracy can only be 0 or 100 %."
        if self.class_counts is None or self.num_classes in (None, 1):
            return
        names = self.class_names or tuple(map(str, range(len(self.class_counts[0]))))
        parts = (("training", "cannot be learned"), ("test", "are not part of the accuracy"))
        for (part, meaning), counts in zip(parts, self.class_counts, strict=True):
            empty = [name for name, count in zip(names, counts, strict=True) if count == 0]
            if empty:
                shown = ", ".join(empty[:5]) + (", …" if len(empty) > 5 else "")
                yield f"{len(empty)} of {len(counts)} classes have no {part} images and {meaning}: {shown}."

    def description(self) -> dict[str, Any]:
        """Return the preprocessing that the trained network needs, as plain lists and numbers."""
        names = ("image_shape", "target_shape", "class_names", "mean", "std")
        values = {name: getattr(self, name) for name in names}
        lists = {name: None if value is None else list(value) for name, value in values.items()}
        return {**lists, "num_classes": self.num_classes, "num_outputs": self.num_outputs}


@final
@dataclass(frozen=True)
class Target:
    """Destination of batches: the device, the rank of this process, and the world size."""

    device: torch.device
    rank: int = 0
    world: int = 1


class Batches(abc.ABC):
    """Batches of inputs and targets, epoch after epoch.

    Batches are stateless. An epoch that is repeated, or started at a later step, yields bit-identical batches, and
    PyTorch's global random state is neither used nor changed.

    Args:
        size: examples of this rank in one epoch.
        steps: batches of this rank in one epoch.
    """

    def __init__(self, size: int, steps: int) -> None:
        self.size = size
        self.steps = steps

    def epoch(self, number: int, first_step: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch, from one of its steps on.

        Inputs are a tensor (batch, …), a tuple of positional arguments or a dict of keyword arguments. Targets are a
        tensor, or a tuple or dict of tensors. Every tensor is on the device.
        """
        if not 0 <= first_step <= self.steps:
            raise InputError(
                f"The first step must be from 0 to {self.steps}, the steps of an epoch, got {first_step} instead.",
                hint="batch size, data and number of processes must be those of the run that is resumed.",
            )
        for batch in self.batches_from(number, first_step):
            check_stop()
            yield batch

    @abc.abstractmethod
    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch from a step on."""

    def plain(self) -> Batches:
        """Return these batches without augmentation, or unchanged if user code does the augmentation."""
        return self


@final
@dataclass(frozen=True)
class Data:
    """A data set, ready for training and testing."""

    info: DataInfo
    train: Batches
    test: Batches
    validation: Batches | None = None
    """training examples held out for choices (``DataSettings.validation``)"""

    @property
    def split(self) -> Split:
        """Return the part that choices are made on: ``"validation"`` if examples are held out, else ``"test"``."""
        return "test" if self.validation is None else "validation"

    @property
    def for_calibration(self) -> Batches:
        """Return training examples without augmentation if possible."""
        return self.train.plain()

    @property
    def for_choices(self) -> Batches:
        """Return the batches of :attr:`split`."""
        return self.test if self.validation is None else self.validation


# -- targets -----------------------------------------------------------------------------------------------------------


def is_integer(tensor: Tensor) -> bool:
    """Return True if a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def are_classes(targets: Any) -> bool:
    """Return True if targets are class indices: one integer per example.

    >>> are_classes(torch.tensor([0, 1])), are_classes(torch.tensor([0.0, 1.0])), are_classes({"x": torch.tensor([0])})
    (True, False, False)
    """
    return isinstance(targets, Tensor) and targets.ndim == 1 and is_integer(targets)


def count_classes(name: str, train: Any, test: Any, known: int = 0) -> int | None:
    """Return the number of classes, at least those known; None if targets are not class indices.

    Raises:
        DataError: labels are negative, too large, or in one part only.
    """
    if not (are_classes(train) and are_classes(test)):
        return None
    count = max(known, int(train.max()) + 1)
    for part, labels in (("training", train), ("test", test)):
        wrong = ((labels < 0) | (labels >= count)).nonzero()
        if len(wrong):
            place = int(wrong[0])
            raise DataError(
                f"the {part} labels of {name} must be from 0 to {count - 1}, got {int(labels[place])} for example "
                f"{place:,} instead.",
                hint="number the classes 0, 1, 2, …; targets of a regression are floats.",
            )
    if count > max(100_000, len(train)):
        raise DataError(
            f"{name} has labels for {count:,} classes, but only {len(train):,} training examples.",
            hint="number the classes 0, 1, 2, … without gaps.",
        )
    return count
