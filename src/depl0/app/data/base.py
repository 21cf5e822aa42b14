"""Settings and description of data sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, final

import annotated_types as at
import torch
from torch import Tensor

from depl0.app.schema import Above0, BelowOne, Count, Number, Positive, Schema, Seed, ShareAbove0
from depl0.errors import DataError

Augmentation: TypeAlias = Literal["default", "none", "crop", "crop-flip", "imagenet"]
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
    own, else 224)."""
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
    return count
