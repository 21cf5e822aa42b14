"""Which examples each step takes, as a pure function of seed and epoch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from depl0.app.data.base import DataSettings, Target
from depl0.errors import InputError

Indices = npt.NDArray[np.int64]

# Purposes of random numbers. Each purpose has its own stream.
ORDER, CROP, _, VALIDATION = range(4)
TRANSFORM = VALIDATION  # a shared number, so that the batches of earlier versions are reproduced
VALIDATION_SEED = 0
"""the same for every run, so that all runs make their choices on the same examples"""
MAX_WORKERS = 8


def random_stream(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """Return random numbers that depend only on the seed, the purpose and the place.

    >>> [int(random_stream(7, ORDER, epoch).integers(100)) for epoch in (3, 4, 3)]
    [41, 16, 41]
    """
    return np.random.default_rng([seed, purpose, *place])


@final
class Shuffled:
    """Training: a new order in every epoch, cut into batches of which each rank takes an equal slice.

    The order does not depend on the number of ranks. Examples that do not fill a last batch are left out of the epoch.
    Fewer examples than one batch make one smaller batch.
    """

    def __init__(self, size: int, settings: DataSettings, target: Target) -> None:
        batch, world = settings.batch_size, target.world
        if batch % world:
            raise InputError(
                f"data.batch_size must be divisible by the {world} processes that share a batch, got {batch} instead.",
                hint=f"use {max(batch // world, 1) * world} or {(batch // world + 1) * world}.",
            )
        if size < world:
            raise InputError(f"{size} training examples cannot be shared by {world} processes.")
        self.batch = batch if batch <= size else size - size % world
        self.steps = size // self.batch
        self.seed = settings.seed
        share = self.batch // world
        self.mine = slice(target.rank * share, (target.rank + 1) * share)
        self.size = self.steps * share
        self._examples = size

    def epoch(self, number: int) -> Sequence[Indices]:
        """Return the example numbers of every step."""
        return list(self.share(random_stream(self.seed, ORDER, number).permutation(self._examples)))

    def share(self, values: Indices) -> Indices:
        """Cut values in epoch order into steps: (steps, examples of this rank)."""
        return values[: self.steps * self.batch].reshape(self.steps, self.batch)[:, self.mine]

    def crops(self, epoch: int, padding: int) -> Indices:
        """Sample top, left and flip of the crops of an epoch: (3, steps, examples of this rank)."""
        rng = random_stream(self.seed, CROP, epoch)
        top, left = rng.integers(0, 2 * padding, size=(2, self._examples), endpoint=True)
        flip = rng.integers(0, 1, size=self._examples, endpoint=True)
        return np.stack([self.share(values) for values in (top, left, flip)])


@final
class InOrder:
    """Testing: every example once, in order; each rank has a part of its own."""

    def __init__(self, size: int, settings: DataSettings, target: Target) -> None:
        self._first = size * target.rank // target.world
        self._end = size * (target.rank + 1) // target.world
        self._batch = settings.eval_batch_size
        self.size = self._end - self._first
        self.steps = -(-self.size // self._batch)

    def epoch(self, number: int) -> Sequence[Indices]:
        """Return the example numbers of every step; all epochs are the same."""
        starts = range(self._first, self._end, self._batch)
        return [np.arange(start, min(start + self._batch, self._end)) for start in starts]


def train_val_split(
    sizes: tuple[int, int], settings: DataSettings, world: int = 1
) -> tuple[Indices, Indices | None, Indices]:
    """Return the numbers of the examples for training, for validation (None: none held out) and for testing.

    The choice is the same for every seed; smaller limits and fractions choose a subset of the examples of larger ones.

    >>> train, validation, test = train_val_split((10, 4), DataSettings(validation=0.2, limit_test=2))
    >>> len(train), validation.tolist(), test.tolist()
    (8, [2, 7], [0, 2])
    """
    train, test = _subset(sizes[0], settings.limit_train, "train"), _subset(sizes[1], settings.limit_test, "test")
    if settings.validation == 0:
        return train, None, test
    size = len(train)
    number = round(settings.validation * size)
    if not world <= number < size:
        raise InputError(
            f"data.validation must hold out at least {world} and fewer than all of the {size:,} training examples, but "
            f"{settings.validation:g} holds out {number:,}.",
            hint="0.1 holds out a tenth; 0 holds out none.",
        )
    order = random_stream(VALIDATION_SEED, VALIDATION).permutation(size)
    return train[np.sort(order[number:])], train[np.sort(order[:number])], test


def _subset(size: int, limit: int, part: str) -> Indices:
    if limit > size:
        raise InputError(
            f"data.limit_{part} must be at most {size:,}, the number of {part} examples, got {limit:,} instead.",
            hint="0 uses all of them.",
        )
    if limit in (0, size):
        return np.arange(size)
    return np.sort(np.random.default_rng(0).permutation(size)[:limit])


def chosen_workers(wanted: int | None, world: int = 1) -> int:
    """Return the number of worker processes: the setting, or this process's share of the free cores.

    >>> chosen_workers(3)
    3
    """
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = cores // world - 1  # one core trains
    return min(spare, MAX_WORKERS) if spare > 1 else 0
