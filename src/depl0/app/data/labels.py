"""Labels that a user's own data gives: within the classes, and no more classes than there can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from depl0.app.data.base import Batches, Data
from depl0.app.data.memory import MemoryBatches
from depl0.errors import DataError

MAX_EMPTY_CLASSES = 100_000
"""So many classes are taken whatever the number of images; more would be a mistake that costs all memory."""


def checked(data: Data, spec: str) -> Data:
    """Return data whose labels are checked: the number of classes at once, each batch when it comes.

    Targets that are no class numbers are left alone.
    """
    classes: Any = data.info.num_classes
    images = data.info.train_size
    if classes is None:
        return data
    if classes < 1 or classes > max(MAX_EMPTY_CLASSES, images):
        raise DataError(
            f"{spec} has labels for {classes:,} classes, but only {images:,} training images.",
            hint="number the classes 0, 1, 2, … without gaps: the largest label says how many there are.",
        )
    return dataclasses.replace(
        data,
        train=_checked(data.train, classes, f"the training images of {spec}"),
        test=_checked(data.test, classes, f"the test images of {spec}"),
        validation=None
        if data.validation is None
        else _checked(data.validation, classes, f"the validation images of {spec}"),
    )


def _checked(batches: Batches, num_classes: int, where: str) -> Batches:
    """Wrap batches; those of arrays are left alone, for all their labels were checked when they were made."""
    return batches if isinstance(batches, MemoryBatches) else CheckedBatches(batches, num_classes, where)


@final
class CheckedBatches(Batches):
    """The batches of somebody else, with labels that are sure to be classes.

    On a CPU every batch is looked at. On another device only the first one of an epoch is, since each look would wait
    for the device.
    """

    def __init__(self, batches: Batches, num_classes: int, where: str) -> None:
        super().__init__(batches.size, batches.steps)
        self._batches = batches
        self._num_classes = num_classes
        self._where = where

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Any]]:
        """Give the batches of one epoch from a step on."""
        for step, (images, labels) in enumerate(self._batches.batches_from(epoch, first_step), start=first_step):
            if not isinstance(labels, Tensor):
                raise self._refusal("be a tensor", type(labels).__name__, epoch, step)
            if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
                found = f"{str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
                raise self._refusal("be whole numbers of shape (number,)", found, epoch, step)
            if len(labels) != len(images):
                raise self._refusal(f"be as many as images ({len(images)})", str(len(labels)), epoch, step)
            whole = labels.to(torch.int64)
            if (whole.device.type == "cpu" or step == first_step) and len(whole):
                self._check(whole, epoch, step)
            yield images, whole

    def _check(self, labels: Tensor, epoch: int, step: int) -> None:
        smallest, largest = torch.stack(torch.aminmax(labels)).tolist()
        if smallest < 0 or largest >= self._num_classes:
            found = smallest if smallest < 0 else largest
            raise self._refusal(f"be from 0 to {self._num_classes - 1}", str(found), epoch, step)

    def _refusal(self, wanted: str, found: str, epoch: int, step: int) -> DataError:
        return DataError(
            f"The labels of {self._where} must {wanted}, got {found} in batch {step} of epoch {epoch} instead.",
            hint="info.num_classes of the Data says how many classes there are; the first one is 0.",
        )


__all__ = ["CheckedBatches", "checked"]
