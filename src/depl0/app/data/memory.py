"""Data sets in memory: uint8 images on the device, which are cropped, mirrored and normalised there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from depl0.app.data.base import Batches, Data, DataInfo, Target, count_classes
from depl0.app.data.schedule import CROP, Indices, Schedule, Shuffled, make_data, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import InputError

Part: TypeAlias = tuple[Tensor, Tensor]
"""images, uint8 (number, channels, height, width), and their classes"""

RESIZE_CHUNK = 1024


@final
@dataclass(frozen=True)
class Arrays:
    """A whole data set in memory, before any setting is applied."""

    name: str
    train: Part
    test: Part
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] | None
    num_classes: int
    augment: str = "none"
    """augmentation selected by ``augment="default"`` for this data set"""


def open_arrays(arrays: Arrays, settings: DataSettings, target: Target) -> Data:
    """Move a data set in memory to the device, and make batches of it."""
    augment = arrays.augment if settings.augment == "default" else settings.augment
    if augment == "imagenet":
        raise InputError(f"data.augment must be crop-flip, crop or none for {arrays.name}, got 'imagenet' instead.")
    count_classes(arrays.name, arrays.train[1], arrays.test[1], arrays.num_classes)
    mean, std = normalisation(settings, (arrays.mean, arrays.std))
    normalise = Normalise(mean, std, target.device)

    def batches(is_train: bool, numbers: Indices, schedule: Schedule) -> Batches:
        images, labels = arrays.train if is_train else arrays.test
        if len(numbers) < len(images):
            images, labels = images[numbers], labels[numbers]
        if settings.sides is not None and images.shape[2:] != settings.sides:
            images = _resize(images, settings.sides)
        crops = None
        if isinstance(schedule, Shuffled) and augment != "none":
            crops = Crops(schedule, len(numbers), settings.crop_padding, augment == "crop-flip")
        chosen = images.to(target.device).contiguous(), labels.to(target.device)
        return MemoryBatches(chosen, schedule, normalise, crops)

    images = arrays.train[0]
    shape = (images.shape[1], *(settings.sides or images.shape[2:]))
    info = partial(DataInfo, name=arrays.name, class_names=arrays.class_names, image_shape=shape, mean=mean, std=std)
    sizes, labels = (len(images), len(arrays.test[0])), (arrays.train[1], arrays.test[1])
    return make_data(info, arrays.num_classes, labels, batches, sizes, settings, target)


@final
@dataclass(frozen=True)
class Crops:
    """Where each training image is cropped, and whether it is mirrored."""

    schedule: Shuffled
    images: int
    padding: int
    flip: bool

    def draw(self, epoch: int) -> Tensor:
        """Sample top, left and flip for every step and image of this rank: (3, steps, images)."""
        rng = random_stream(self.schedule.seed, CROP, epoch)
        top, left = rng.integers(0, 2 * self.padding, size=(2, self.images), endpoint=True)
        flip = rng.integers(0, 1, size=self.images, endpoint=True) * self.flip
        return torch.from_numpy(np.stack([self.schedule.share(values) for values in (top, left, flip)]))


@final
class MemoryBatches(Batches):
    """Batches of images that are already on the device."""

    def __init__(self, part: Part, schedule: Schedule, normalise: Normalise, crops: Crops | None = None) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._part, self._schedule, self._normalise, self._crops = part, schedule, normalise, crops

    def plain(self) -> MemoryBatches:
        """Return these batches, neither cropped nor mirrored."""
        return MemoryBatches(self._part, self._schedule, self._normalise)

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch from a step on."""
        images_of_part, labels = self._part
        device = images_of_part.device
        draws = None if self._crops is None else self._crops.draw(epoch).to(device)
        steps = self._schedule.epoch(epoch)
        for step in range(first_step, self.steps):
            chosen = torch.from_numpy(steps[step]).to(device)
            # index_select copies whole images; indexing with a tensor would go number by number.
            images = images_of_part.index_select(0, chosen)
            if self._crops is not None and draws is not None:
                top, left, flip = draws[:, step]
                images = crop_and_flip(images, top, left, flip > 0, self._crops.padding)
            yield self._normalise(images), labels.index_select(0, chosen)


# -- pixels ------------------------------------------------------------------------------------------------------------


def crop_and_flip(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, padding: int) -> Tensor:
    """Shift each image within its zero padding, and mirror those whose ``flip`` is true.

    ``top`` and ``left`` are where each crop begins in the padded image, from 0 to ``2 * padding``; the crop has the
    image's own size.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> one = torch.tensor([1])
    >>> crop_and_flip(image, top=one, left=2 * one, flip=one > 0, padding=1).tolist()
    [[[[0, 2], [0, 4]]]]
    """
    batch, channels, height, width = images.shape
    padded = functional.pad(images, [padding] * 4)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], columns.flip(0), columns) + left[:, None]  # (batch, width)
    rows = torch.arange(height, device=images.device) + top[:, None]  # (batch, height)
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (batch, height, width)
    # One gather for crop and mirror: several times as fast as indexing with rows and columns.
    places = places.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.view(batch, channels, -1).gather(2, places).view(batch, channels, height, width)


@final
class Normalise:
    """Turns uint8 images into floats: (x / 255 − mean) / std, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.mean, self.std = tuple(mean), tuple(std)
        spread = torch.tensor(std, dtype=torch.float64)
        shift = -torch.tensor(mean, dtype=torch.float64) / spread
        self._scale = (1 / (255 * spread)).view(-1, 1, 1).to(device, torch.float32)
        self._shift = shift.view(-1, 1, 1).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (batch, channels, height, width)."""
        return images.to(torch.float32).mul_(self._scale).add_(self._shift)


def normalisation(
    settings: DataSettings, own: tuple[Sequence[float], Sequence[float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation: those of the settings, or the data set's own."""
    chosen = settings.mean or own[0], settings.std or own[1]
    for name, values in zip(("mean", "std"), chosen, strict=True):
        if len(values) != len(own[0]):
            raise InputError(
                f"data.{name} must have {len(own[0])} numbers, one per channel of the images, "
                f"got {len(values)} instead."
            )
    return tuple(chosen[0]), tuple(chosen[1])


def _resize(images: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize uint8 images to a height and width, bilinear and without aliasing."""
    resized = images.new_empty(*images.shape[:2], *sides)
    for start in range(0, len(images), RESIZE_CHUNK):
        chunk = images[start : start + RESIZE_CHUNK].to(torch.float32)
        chunk = functional.interpolate(chunk, sides, mode="bilinear", antialias=True)
        resized[start : start + RESIZE_CHUNK] = chunk.round_().clamp_(0, 255).to(torch.uint8)
    return resized
