"""Interface of data sets: a description, and batches that are a pure function of seed, epoch and step."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor

from depl0._util.progress import check_stop
from depl0.errors import InputError

Split: TypeAlias = Literal["validation", "test"]


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
    """training and test examples of each class, if the labels are known without reading the images"""
    input_shapes: str = field(default="", kw_only=True)
    """the inputs of one example, if they are not one image"""
    mean: tuple[float, ...] | None = None
    """mean by which images in [0, 1] are normalised, one number per channel"""
    std: tuple[float, ...] | None = None
    target_shape: tuple[int, ...] | None = ()
    """the shape of one target: () is a number, None several tensors"""
    labels: tuple[int, ...] | None = None
    """the integers that occur in label maps, if they are known"""

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


def is_integer(tensor: Tensor) -> bool:
    """Return True if a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
