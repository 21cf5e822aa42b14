"""Data sets in memory: uint8 images on the device, which are cropped, mirrored and normalised there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from depl0.app.data.base import Batches, Data, DataInfo, Target, is_integer
from depl0.app.data.parts import make_data
from depl0.app.data.schedule import CROP, Indices, Schedule, Shuffled, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, InputError

Part: TypeAlias = tuple[Tensor, Any]
"""images, uint8 (number, channels, height, width), and their targets: a tensor, or a tuple or dict of tensors"""

MAX_LABELS = 256
"""label maps with more different integers are not listed"""
RESIZE_CHUNK = 1024


@final
@dataclass(frozen=True)
class Arrays:
    """A whole data set in memory, before any setting is applied."""

    name: str
    train: Part
    test: Part
    mean: tuple[float, ...] | None = None
    """None: measured"""
    std: tuple[float, ...] | None = None
    augment: str = "none"
    """augmentation selected by ``augment="default"`` for this data set"""
    class_names: tuple[str, ...] | None = None
    num_classes: int | None = None
    """None: the number of names, or the largest label"""


def open_arrays(arrays: Arrays, settings: DataSettings, target: Target) -> Data:
    """Check a data set in memory, move it to the device, and make batches of it."""
    augment = arrays.augment if settings.augment == "default" else settings.augment
    if augment == "imagenet":
        raise InputError(f"data.augment must be crop-flip, crop or none for {arrays.name}, got 'imagenet' instead.")
    for part, which in ((arrays.train, "training"), (arrays.test, "test")):
        _check(part, f"{which} images of {arrays.name}")
    _check_alike(arrays)
    changes = {"augment": augment != "none" and augment, "image_size": settings.image_size}
    for name, value in changes.items():  # label maps and points would not be augmented with the images
        if value and any(tensor.ndim > 2 for tensor in pytree.tree_leaves(arrays.train[1])):
            raise InputError(
                f"data.{name} must be left out for {arrays.name}, whose targets have places in the image, "
                f"got {value!r} instead.",
                hint="change images and targets together in a Dataset of your own.",
            )
    num_classes = count_classes(
        arrays.name, arrays.train[1], arrays.test[1], arrays.num_classes or len(arrays.class_names or ())
    )
    own = (arrays.mean, arrays.std) if arrays.mean and arrays.std else statistics(arrays.train[0])
    mean, std = normalisation(settings, own)
    normalise = Normalise(mean, std, target.device)

    def batches(is_train: bool, numbers: Indices, schedule: Schedule) -> Batches:
        chosen = _select(arrays.train if is_train else arrays.test, numbers, settings, target)
        crops = None
        if isinstance(schedule, Shuffled) and augment != "none":
            crops = Crops(schedule, len(numbers), settings.crop_padding, augment == "crop-flip")
        return MemoryBatches(chosen, schedule, normalise, crops)

    images, targets = arrays.train
    describe = partial(
        DataInfo,
        name=arrays.name,
        class_names=arrays.class_names,
        image_shape=(images.shape[1], *(settings.sides or images.shape[2:])),
        mean=mean,
        std=std,
        target_shape=target_shape(targets),
        labels=_labels_in(targets, arrays.test[1]),
    )
    sizes = len(images), len(arrays.test[0])
    return make_data(describe, num_classes, (targets, arrays.test[1]), batches, sizes, settings, target)


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

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Any]]:
        """Yield the batches of one epoch from a step on."""
        images_of_part, targets = self._part
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
            yield self._normalise(images), pytree.tree_map(_chosen_targets(chosen), targets)


def _chosen_targets(chosen: Tensor) -> Callable[[Tensor], Tensor]:
    def select(targets: Tensor) -> Tensor:
        found = targets.index_select(0, chosen)
        return found.long() if is_integer(found) else found  # converted only here, so that large label maps stay small

    return select


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


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel of uint8 images, on the scale from 0 to 1.

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


def _resize(images: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize uint8 images to a height and width, bilinear and without aliasing."""
    resized = images.new_empty(*images.shape[:2], *sides)
    for start in range(0, len(images), RESIZE_CHUNK):
        chunk = images[start : start + RESIZE_CHUNK].to(torch.float32)
        chunk = functional.interpolate(chunk, sides, mode="bilinear", antialias=True)
        resized[start : start + RESIZE_CHUNK] = chunk.round_().clamp_(0, 255).to(torch.uint8)
    return resized


# -- what belongs to an image ------------------------------------------------------------------------------------------


def are_classes(targets: Any) -> bool:
    """Return True if targets are class indices: one integer per example.

    >>> are_classes(torch.tensor([0, 1])), are_classes(torch.tensor([0.0, 1.0])), are_classes({"x": torch.tensor([0])})
    (True, False, False)
    """
    return isinstance(targets, Tensor) and targets.ndim == 1 and is_integer(targets)


def target_shape(targets: Any) -> tuple[int, ...] | None:
    """Return the shape of one example's target; None if it is several tensors."""
    return tuple(targets.shape[1:]) if isinstance(targets, Tensor) else None


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


def _select(part: Part, chosen: Indices, settings: DataSettings, target: Target) -> Part:
    images, targets = part
    if len(chosen) < len(images):
        images, targets = images[chosen], pytree.tree_map(lambda tensor: tensor[chosen], targets)
    if settings.sides is not None and images.shape[2:] != settings.sides:
        images = _resize(images, settings.sides)
    return images.to(target.device).contiguous(), pytree.tree_map(lambda tensor: tensor.to(target.device), targets)


def _check(part: Part, which: str) -> None:
    images, targets = part
    if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape:
        raise DataError(
            f"the {which} must be uint8 of shape (number, channels, height, width), "
            f"got {images.dtype} of shape {tuple(images.shape)} instead."
        )
    for tensor in pytree.tree_leaves(targets):
        if tensor.ndim == 0 or len(tensor) != len(images):
            found = "one number" if tensor.ndim == 0 else f"{len(tensor)} targets"
            raise DataError(f"the {which} must have one target each, got {len(images)} images and {found}.")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            place = int((~tensor.isfinite()).nonzero()[0][0])
            raise DataError(f"the targets of the {which} must be finite, but that of image {place:,} is not.")


def _check_alike(arrays: Arrays) -> None:
    train, test = (
        pytree.tree_map(lambda t: f"{'integers' if is_integer(t) else 'numbers'} of shape {tuple(t.shape[1:])}", part)
        for part in (arrays.train, arrays.test)
    )
    if train != test:
        raise DataError(f"training and test data of {arrays.name} must have one form, got {train} and {test} instead.")


def _labels_in(*parts: Any) -> tuple[int, ...] | None:
    """Return the integers that occur in label maps; None for other targets."""
    if not all(isinstance(part, Tensor) and part.ndim > 2 and is_integer(part) for part in parts):
        return None
    found = sorted({int(value) for part in parts for value in part.unique()})
    return tuple(found) if len(found) <= MAX_LABELS else None
