"""Which images each step takes, as a pure function of seed and epoch; and how many processes read them."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from depl0.app.data.base import Target
from depl0.app.data.settings import DataSettings
from depl0.errors import InputError

Indices = npt.NDArray[np.int64]

# What random numbers are for. Each purpose has a stream of its own.
ORDER, CROP, RESIZED_CROP, VALIDATION = range(4)
VALIDATION_SEED = 0
"""the same for every run, so that all of them are chosen and compared on the same images"""


def random_stream(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """Give random numbers that depend on the seed, the purpose and the place alone.

    >>> [int(random_stream(7, ORDER, epoch).integers(100)) for epoch in (3, 4, 3)]
    [41, 16, 41]
    """
    return np.random.default_rng([seed, purpose, *place])


class Schedule(abc.ABC):
    """Gives, for each step of an epoch, the images that this rank takes."""

    size: int
    """Images that this rank takes in one epoch."""
    steps: int

    @abc.abstractmethod
    def epoch(self, number: int) -> Sequence[Indices]:
        """Give one array of image numbers for each step."""


@final
class Shuffled(Schedule):
    """Training: a new order in every epoch, cut into batches of which each rank takes an equal slice.

    The order does not depend on the number of ranks. Images left over at the end of an epoch wait for the next one.
    Fewer images than one batch make one smaller batch. With ``epoch_images`` one order serves several short epochs.
    """

    def __init__(self, size: int, settings: DataSettings, target: Target) -> None:
        batch, world = settings.batch_size, target.world
        if batch % world:
            raise InputError(
                f"The data setting 'batch_size' must be divisible by the {world} processes that share a batch, "
                f"got {batch} instead.",
                hint=f"use {max(batch // world, 1) * world} or {(batch // world + 1) * world}.",
            )
        if size < world:
            raise InputError(f"{size} training images cannot be shared by {world} processes.")
        self.batch = batch if batch <= size else size - size % world
        self.steps = _steps(size, self.batch, settings.epoch_images)
        self._epochs_in_order = size // (self.steps * self.batch)
        self.seed = settings.seed
        share = self.batch // world
        self.mine = slice(target.rank * share, (target.rank + 1) * share)
        self.size = self.steps * share
        self._images = size

    def epoch(self, number: int) -> Sequence[Indices]:
        """Give the image numbers of every step."""
        order, part = divmod(number, self._epochs_in_order)
        first = part * self.steps * self.batch
        return list(self.share(random_stream(self.seed, ORDER, order).permutation(self._images)[first:]))

    def share(self, values: Indices) -> Indices:
        """Cut what belongs to the images in epoch order into steps: (steps, images of this rank)."""
        return values[: self.steps * self.batch].reshape(self.steps, self.batch)[:, self.mine]


def _steps(size: int, batch: int, epoch_images: int) -> int:
    if epoch_images == 0:
        return size // batch
    if not batch <= epoch_images <= size:
        raise InputError(
            f"The data setting 'epoch_images' must be at least {batch:,}, one batch, and at most {size:,}, all the "
            f"training images, got {epoch_images:,} instead.",
            hint="0 makes an epoch of all of them.",
        )
    return epoch_images // batch


@final
class InOrder(Schedule):
    """Testing: every image once, in order; each rank has a part of its own."""

    def __init__(self, size: int, settings: DataSettings, target: Target) -> None:
        self._first = size * target.rank // target.world
        self._end = size * (target.rank + 1) // target.world
        self._batch = settings.eval_batch_size
        self.size = self._end - self._first
        self.steps = -(-self.size // self._batch)

    def epoch(self, number: int) -> Sequence[Indices]:
        """Give the image numbers of every step; all epochs are the same."""
        starts = range(self._first, self._end, self._batch)
        return [np.arange(start, min(start + self._batch, self._end)) for start in starts]


def limited(size: int, limit: int, part: str = "train") -> Indices | None:
    """Choose the images to use: None is all. The choice is the same for every seed, and smaller ones nest."""
    if limit > size:
        images = "training images" if part == "train" else f"{part} images"
        raise InputError(
            f"The data setting 'limit_{part}' must be at most {size:,}, the number of {images}, got {limit:,} instead.",
            hint="0 uses all of them.",
        )
    if limit in (0, size):
        return None
    return np.sort(np.random.default_rng(0).permutation(size)[:limit])


def held_out(size: int, share: float, world: int = 1) -> tuple[Indices, Indices] | None:
    """Divide the training images to use: those to train on, and those held out for validation; None holds out none.

    The division depends on nothing but the number of images and the share; larger shares contain smaller ones.

    >>> train, validation = held_out(10, 0.2)
    >>> len(train), validation.tolist()
    (8, [2, 7])
    """
    if share == 0:
        return None
    number = round(share * size)
    if number < world or number == size:
        found = f"{number:,} of the {size:,} training images"
        needed = "leave images to train on" if number == size else f"hold out at least {world}"
        several = "" if world == 1 or number == size else f", one for each of the {world} processes"
        raise InputError(
            f"The data setting 'validation' must {needed}{several}, but {share:g} holds out {found}.",
            hint="0.1 holds out a tenth; 0 holds out none.",
        )
    order = random_stream(VALIDATION_SEED, VALIDATION).permutation(size)
    return np.sort(order[number:]), np.sort(order[:number])


MOST = 8
"""more are seldom busy, and each holds the libraries that decode images in memory"""


def chosen_workers(wanted: int | None, world: int = 1) -> int:
    """Return what the settings say; where they say nothing, the cores that are left, shared by the processes of a run.

    >>> chosen_workers(3)
    3
    """
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = cores // world - 1  # one core trains
    return min(spare, MOST) if spare > 1 else 0
