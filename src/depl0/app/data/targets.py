"""What belongs to an image besides its pixels: a tensor, or a dict or tuple of them, as the task wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depl0.errors import DataError, InputError

Targets = Any
"""A tensor whose first dimension is the images, or a dict or tuple of such."""

MAX_LABELS = 256
"""more different whole numbers than this are no labels"""


def are_classes(targets: Targets) -> bool:
    """Tell whether targets are class numbers: one whole number for each image.

    >>> are_classes(torch.tensor([0, 1])), are_classes(torch.tensor([0.0, 1.0])), are_classes({"x": torch.tensor([0])})
    (True, False, False)
    """
    return isinstance(targets, Tensor) and targets.ndim == 1 and _is_whole(targets)


def read_targets(targets: Any, refuse: Callable[[object], DataError]) -> Targets:
    """Make tensors of arrays and of lists of numbers, in dicts and tuples too; float64 becomes float32."""
    if isinstance(targets, dict):
        return {str(key): read_targets(value, refuse) for key, value in targets.items()}
    if isinstance(targets, tuple) and not all(isinstance(value, (int, float)) for value in targets):
        return tuple(read_targets(value, refuse) for value in targets)
    if not isinstance(targets, Tensor):
        try:
            array = np.array(targets)
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch can do little with these
                array = array.astype(np.int64)
            targets = torch.from_numpy(array)
        except (TypeError, ValueError) as error:
            raise refuse(error) from error
    return targets.float() if targets.dtype == torch.float64 else targets


def mapped(targets: Targets, function: Callable[[Tensor], Tensor]) -> Targets:
    """Return the same structure with a function applied to every tensor."""
    if isinstance(targets, dict):
        return {key: mapped(value, function) for key, value in targets.items()}
    if isinstance(targets, tuple):
        return tuple(mapped(value, function) for value in targets)
    assert isinstance(targets, Tensor)  # they were read by read_targets
    return function(targets)


def leaves(targets: Targets) -> list[Tensor]:
    """Return all tensors."""
    if isinstance(targets, dict):
        targets = tuple(targets.values())
    if isinstance(targets, tuple):
        return [tensor for value in targets for tensor in leaves(value)]
    return [targets]


def of_images(targets: Targets, chosen: Tensor) -> Targets:
    """Return the targets of some images. Whole numbers become int64 here, so that large label maps are kept small."""
    return mapped(targets, lambda tensor: _wide(tensor.index_select(0, chosen)))


def check_targets(targets: Targets, images: int, which: str) -> None:
    """Refuse targets that are not one for each image."""
    tensors = leaves(targets)
    if not tensors:
        raise DataError(f"The targets of the {which} must be at least one tensor, got {targets!r} instead.")
    for tensor in tensors:
        if tensor.ndim == 0 or len(tensor) != images:
            found = "one number" if tensor.ndim == 0 else f"{len(tensor)} targets"
            raise DataError(f"The {which} must have one target each, got {images} images and {found}.")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            place = int((~tensor.isfinite()).nonzero()[0][0])
            raise DataError(f"The targets of the {which} must be finite, but that of image {place:,} is not.")


def check_alike(train: Targets, test: Targets, name: str) -> None:
    """Refuse test targets that are not of the form and shape of the training targets."""
    ours, theirs = (_outline(part) for part in (train, test))
    if ours != theirs:
        raise DataError(
            f"Training and test targets of {name} must have one form, got {ours} and {theirs} for an image instead."
        )


def check_stay(targets: Targets, name: str, setting: str, value: object, allowed: str) -> None:
    """Refuse to move the pixels of images whose targets have pixels or points too: they would stay where they are."""
    if any(tensor.ndim > 2 for tensor in leaves(targets)):
        raise InputError(
            f"The data setting {setting!r} must be {allowed} for {name}, whose targets have places in the image, "
            f"got {value!r} instead.",
            hint="change images and targets together in your own function.",
        )


def target_shape(targets: Targets) -> tuple[int, ...] | None:
    """Return the shape of one image's target; None where it is several tensors."""
    return tuple(targets.shape[1:]) if isinstance(targets, Tensor) else None


def labels_in(*parts: Targets) -> tuple[int, ...] | None:
    """Return the whole numbers that occur in label maps; None for other targets."""
    if not all(isinstance(part, Tensor) and part.ndim > 2 and _is_whole(part) for part in parts):
        return None
    found = sorted({int(value) for part in parts for value in part.unique()})
    return tuple(found) if len(found) <= MAX_LABELS else None


def _outline(targets: Targets) -> object:
    """Return shapes and kinds of number, as an error shows them."""
    if isinstance(targets, dict):
        return {key: _outline(value) for key, value in targets.items()}
    if isinstance(targets, tuple):
        return tuple(_outline(value) for value in targets)
    kind = "whole numbers" if _is_whole(targets) else "numbers"
    return f"{kind} of shape {tuple(targets.shape[1:])}"


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.long() if _is_whole(tensor) else tensor
