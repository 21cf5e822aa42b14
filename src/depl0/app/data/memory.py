"""Data sets that live in memory as uint8 on the device, and are cropped, mirrored and normalised there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from depl0.app.data.base import Batches, Data, DataInfo, Target, counted
from depl0.app.data.pixels import Normalise, crop_and_flip, normalisation, resize
from depl0.app.data.schedule import CROP, Indices, InOrder, Schedule, Shuffled, held_out, limited, random_stream
from depl0.app.data.settings import DataSettings
from depl0.app.data.targets import (
    Targets,
    are_classes,
    check_alike,
    check_stay,
    check_targets,
    labels_in,
    mapped,
    of_images,
    target_shape,
)
from depl0.errors import DataError, InputError

Part = tuple[Tensor, Targets]
"""Images, uint8 (number, channels, height, width), and their class numbers (number,) or other targets."""


@final
@dataclass(frozen=True)
class Arrays:
    """A whole data set in memory, before any setting is applied."""

    name: str
    train: Part
    test: Part
    num_classes: int | None
    """None where targets are no class numbers."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str
    """What ``augment="default"`` means for this data set."""
    class_names: tuple[str, ...] | None = None


@final
@dataclass(frozen=True)
class Crops:
    """Where each training image is cropped, and whether it is mirrored."""

    schedule: Shuffled
    images: int
    padding: int
    flip: bool

    def draw(self, epoch: int) -> Tensor:
        """Draw top, left and flip for every step and image of this rank: (3, steps, images)."""
        rng = random_stream(self.schedule.seed, CROP, epoch)
        top, left = rng.integers(0, 2 * self.padding, size=(2, self.images), endpoint=True)
        flip = rng.integers(0, 1, size=self.images, endpoint=True) * self.flip
        return torch.from_numpy(np.stack([self.schedule.share(values) for values in (top, left, flip)]))


@final
class MemoryBatches(Batches):
    """Batches of images that are on the device already."""

    def __init__(self, part: Part, schedule: Schedule, normalise: Normalise, crops: Crops | None = None) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._images, self._targets = part
        self._schedule = schedule
        self._normalise = normalise
        self._crops = crops

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Targets]]:
        """Give the batches of one epoch from a step on."""
        device = self._images.device
        draws = None if self._crops is None else self._crops.draw(epoch).to(device)
        steps = self._schedule.epoch(epoch)
        for step in range(first_step, self.steps):
            chosen = torch.from_numpy(steps[step]).to(device)
            # index_select copies whole images; indexing with a tensor would go number by number.
            images = self._images.index_select(0, chosen)
            if self._crops is not None and draws is not None:
                top, left, flip = draws[:, step]
                images = crop_and_flip(images, top, left, flip > 0, self._crops.padding)
            yield self._normalise(images), of_images(self._targets, chosen)


def open_arrays(arrays: Arrays, settings: DataSettings, target: Target) -> Data:
    """Check a data set in memory, move it to the device, and make batches of it."""
    augment = arrays.augment if settings.augment == "default" else settings.augment
    if augment == "imagenet":
        raise InputError(
            f"The data setting 'augment' cannot be 'imagenet' for {arrays.name}, whose images are small and in memory.",
            hint="use 'crop-flip', 'crop' or 'none'.",
        )
    _check(arrays)
    if augment != "none":
        check_stay(arrays.train[1], arrays.name, "augment", augment, "'none'")
    if settings.image_size is not None:
        check_stay(arrays.train[1], arrays.name, "image_size", settings.image_size, "left out")
    mean, std = normalisation(settings.mean, settings.std, (arrays.mean, arrays.std))
    chosen = limited(len(arrays.train[0]), settings.limit_train)
    train = arrays.train if chosen is None else _selected(arrays.train, chosen)
    divided = held_out(len(train[0]), settings.validation, target.world)
    validation = None
    if divided is not None:
        train, validation = (_selected(train, part) for part in divided)
        validation = _placed(*validation, settings, target)
    train = _placed(*train, settings, target)
    chosen = limited(len(arrays.test[0]), settings.limit_test, "test")
    test = _placed(*(arrays.test if chosen is None else _selected(arrays.test, chosen)), settings, target)

    normalise = Normalise(mean, std, target.device)
    shuffled = Shuffled(len(train[0]), settings, target)
    crops = None
    if augment != "none":
        crops = Crops(shuffled, len(train[0]), settings.crop_padding, flip=augment == "crop-flip")
    channels, height, width = train[0].shape[1:]
    return Data(
        DataInfo(
            name=arrays.name,
            num_classes=arrays.num_classes,
            class_names=arrays.class_names,
            image_shape=(channels, height, width),
            train_size=len(train[0]),
            test_size=len(test[0]),
            validation_size=0 if validation is None else len(validation[0]),
            class_counts=counted(arrays.num_classes, train[1], test[1]),
            mean=mean,
            std=std,
            target_shape=target_shape(arrays.train[1]),
            labels=labels_in(arrays.train[1], arrays.test[1]),
        ),
        train=MemoryBatches(train, shuffled, normalise, crops),
        test=MemoryBatches(test, InOrder(len(test[0]), settings, target), normalise),
        validation=None
        if validation is None
        else MemoryBatches(validation, InOrder(len(validation[0]), settings, target), normalise),
        plain=MemoryBatches(train, shuffled, normalise),
    )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure the mean and standard deviation of each channel of uint8 images, on the scale from 0 to 1.

    A channel in which every pixel is the same gets the standard deviation 1, so that it can be divided by.
    """
    means, spreads = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten().to(torch.int32), minlength=256).to(torch.float64)
        values = torch.arange(256, dtype=torch.float64, device=images.device) / 255
        share = counts / counts.sum()
        mean = (share * values).sum()
        spread = (share * (values - mean) ** 2).sum().sqrt()
        means.append(mean.item())
        spreads.append(spread.item() or 1.0)
    return tuple(means), tuple(spreads)


def _selected(part: Part, chosen: Indices) -> Part:
    images, targets = part
    return images[chosen], mapped(targets, lambda tensor: tensor[chosen])


def _placed(images: Tensor, targets: Targets, settings: DataSettings, target: Target) -> Part:
    if settings.sides is not None:
        images = resize(images, settings.sides)
    return images.to(target.device).contiguous(), mapped(targets, lambda tensor: tensor.to(target.device))


def _check(arrays: Arrays) -> None:
    for part, (images, targets) in (("training", arrays.train), ("test", arrays.test)):
        which = f"{part} images of {arrays.name}"
        check_images(images, which)
        if arrays.num_classes is None:
            check_targets(targets, len(images), which)
        else:
            _check_classes(targets, len(images), which)
            check_labels(targets, arrays.num_classes, f"the labels of the {which}")
    check_alike(arrays.train[1], arrays.test[1], arrays.name)
    if arrays.train[0].shape[1:] != arrays.test[0].shape[1:]:
        raise DataError(
            f"Training and test images of {arrays.name} must have one shape, got "
            f"{tuple(arrays.train[0].shape[1:])} and {tuple(arrays.test[0].shape[1:])} instead."
        )


def check_images(images: Tensor, which: str) -> None:
    """Refuse what are not uint8 images."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"The {which} must be uint8 of shape (number, channels, height, width), "
            f"got {_dtype(images)} of shape {tuple(images.shape)} instead.",
            hint="give pixels from 0 to 255: they are normalised in each batch.",
        )
    if 0 in images.shape:
        raise DataError(f"The {which} must be at least one, got shape {tuple(images.shape)} instead.")


def _check_classes(targets: Targets, images: int, which: str) -> None:
    if not are_classes(targets):
        found = f"{_dtype(targets)} of shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else repr(targets)
        raise DataError(f"The labels of the {which} must be whole numbers of shape (number,), got {found} instead.")
    if len(targets) != images:
        raise DataError(f"The {which} must have one label each, got {images} images and {len(targets)} labels.")


def check_labels(labels: Tensor, num_classes: int, where: str, hint: str | None = None) -> None:
    """Refuse labels outside of the classes, naming the first one."""
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise DataError(
            f"{where[0].upper()}{where[1:]} must be from 0 to {num_classes - 1}, got {int(labels[place])} "
            f"for image {place:,} instead.",
            hint=hint,
        )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
