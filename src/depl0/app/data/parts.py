"""Make :class:`Data` of training and test examples: the parts, their schedules, and the description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from depl0.app.data.base import Batches, Data, DataInfo, Target
from depl0.app.data.schedule import Indices, InOrder, Schedule, Shuffled, split
from depl0.app.data.settings import DataSettings

MakeBatches: TypeAlias = Callable[[bool, Indices, Schedule], Batches]
"""from whether the examples are training examples, their numbers, and a schedule of these"""


def make_data(
    describe: Callable[..., DataInfo],
    num_classes: int | None,
    targets: tuple[Any, Any],
    batches: MakeBatches,
    sizes: tuple[int, int],
    settings: DataSettings,
    target: Target,
) -> Data:
    """Divide examples into parts and make batches of each.

    Args:
        describe: takes the number of classes, the sizes and the class counts.
        num_classes: None if targets are not class indices; they are then ignored.
        targets: of all training and all test examples.
        batches: makes the batches of some of the examples.
        sizes: the numbers of training and of test examples.
        settings: limits, examples held out for validation, batch sizes.
        target: where batches are needed.
    """
    train, held_out, test = split(sizes, settings, target.world)

    def in_order(is_train: bool, numbers: Indices) -> Batches:
        return batches(is_train, numbers, InOrder(len(numbers), settings, target))

    def counts(labels: Any, numbers: Indices) -> tuple[int, ...]:
        chosen = torch.as_tensor(labels)[torch.from_numpy(numbers)]
        return tuple(torch.bincount(chosen, minlength=num_classes or 0).tolist())

    info = describe(
        num_classes=num_classes,
        train_size=len(train),
        test_size=len(test),
        validation_size=0 if held_out is None else len(held_out),
        class_counts=None if num_classes is None else (counts(targets[0], train), counts(targets[1], test)),
    )
    return Data(
        info,
        train=batches(True, train, Shuffled(len(train), settings, target)),
        test=in_order(False, test),
        validation=None if held_out is None else in_order(True, held_out),
    )
