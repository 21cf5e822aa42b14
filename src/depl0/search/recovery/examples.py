"""The inputs of a label-free recovery: the held-out examples, and the mixing and augmentation of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from depl0._util.process import read_as_user, with_user_defaults
from depl0.errors import InputError
from depl0.search.calibration import examples_in, on_device
from depl0.search.recovery.memory import BATCH

BATCH_SIZE = BATCH
"""Largest batch if examples can be mixed: twice as many steps of half the size recover more in the same time."""
HELD_OUT = 8
"""Every eighth example is held out."""

Augment: TypeAlias = "bool | Callable[[Any], Any]"


def hold_out(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split batches into training and held-out inputs: every eighth example, or every eighth batch if they are small.

    >>> fit, held_out = hold_out([torch.arange(16)])
    >>> held_out
    [tensor([0, 8])]
    """
    if inputs and all(examples_in(batch) >= HELD_OUT for batch in inputs):
        taken = [torch.arange(examples_in(batch)) % HELD_OUT == 0 for batch in inputs]
        return (
            [pick(batch, ~mask) for batch, mask in zip(inputs, taken, strict=True)],
            [pick(batch, mask) for batch, mask in zip(inputs, taken, strict=True)],
        )
    if len(inputs) < 2:
        return inputs, []
    return [batch for n, batch in enumerate(inputs) if n % HELD_OUT != 1], inputs[1::HELD_OUT]


def pick(batch: Any, mask: Tensor) -> Any:
    """Return the selected examples of a batch of any structure."""

    def picked(leaf: Any) -> Any:
        per_example = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(mask)
        return leaf[mask.to(leaf.device)] if per_example else leaf

    return pytree.tree_map(picked, batch)


def smallest_batch(inputs: Iterable[Any]) -> int:
    """Return the size of the smallest batch; for a stream, of its first batch."""
    return min(examples_in(batch) for batch in (inputs if isinstance(inputs, list) else islice(inputs, 1)))


def endless(inputs: Iterable[Any], device: torch.device, most: int = BATCH_SIZE) -> Iterator[Any]:
    """Yield batches in an endless loop; those of a list are shuffled, and mixed if each is one tensor.

    Mixed batches have at most ``most`` examples.
    """
    while not isinstance(inputs, list):
        for batch in read_as_user(inputs):
            yield on_device(batch, device)
    kept: list[Any] = on_device(inputs, device)
    tensors = [batch for batch in kept if isinstance(batch, Tensor)]
    if len(tensors) == len(kept) and len({batch.shape[1:] for batch in tensors}) == 1:
        lengths = torch.tensor([len(batch) for batch in tensors])
        size, starts = min(most, int(lengths.max())), lengths.cumsum(0) - lengths
        batch_of = torch.repeat_interleave(torch.arange(len(tensors)), lengths)
        while True:
            order = torch.randperm(len(batch_of))
            for start in range(0, max(len(order) - size, 0) + 1, size):
                chosen = order[start : start + size]
                places = (chosen - starts[batch_of[chosen]]).tolist()
                yield torch.stack([tensors[b][i] for b, i in zip(batch_of[chosen].tolist(), places, strict=True)])
    while True:
        for number in torch.randperm(len(kept)).tolist():
            yield kept[number]


def check_augment(augment: Augment, batch: Any) -> None:
    """Raise InputError if flips and shifts are requested for inputs that are not images."""
    if augment is True and not is_image_batch(batch):
        raise InputError(
            "augment must be False, or a function, if inputs are not batches of images (batch, channels, h, w).",
            hint="pass a function that returns a changed batch of inputs.",
        )


def is_image_batch(batch: Any) -> bool:
    """Return True for one floating-point tensor (batch, channels, height, width)."""
    return isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point()


def augmented(batch: Any, augment: Augment) -> Any:
    """Return a batch after augmentation."""
    if callable(augment):
        return with_user_defaults(augment, batch)
    return flip_and_shift(batch) if augment else batch


def flip_and_shift(images: Tensor) -> Tensor:
    """Flip half of the images, and shift each by up to an eighth of its size, with zero padding."""
    height, width = images.shape[-2:]
    up, left = height // 8, width // 8
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1).to(images.device), images.flip(-1), images)
    padded = functional.pad(images, (left, left, up, up))
    rows, columns = torch.randint(0, 2 * up + 1, (len(images),)), torch.randint(0, 2 * left + 1, (len(images),))
    shifted = [
        image[:, row : row + height, column : column + width]
        for image, row, column in zip(padded, rows.tolist(), columns.tolist(), strict=True)
    ]
    return torch.stack(shifted)
