"""One example of somebody else's data: where its image and its target are, and what they look like."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from depl0.app.data.targets import are_classes, read_targets
from depl0.errors import DataError

IMAGE_NAMES = ("image", "img", "pixel_values", "images", "pixels", "x")
TARGET_NAMES = ("label", "labels", "target", "targets", "fine_label", "class", "y")
WANTED = "(image, target), or a dict with an 'image' and a 'label'"


def is_hugging_face(data: object) -> bool:
    """Tell whether data is a split of Hugging Face's ``datasets``; who made one has imported that package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


def is_hugging_face_dict(data: object) -> bool:
    """Tell whether data is the splits of a data set of Hugging Face."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.DatasetDict)


def splits_of(data: Mapping[str, Any], spec: str) -> tuple[Any, Any]:
    """Return the training and the test split of a data set of Hugging Face."""
    test = next((name for name in ("test", "validation", "valid", "val") if name in data), None)
    if "train" not in data or test is None:
        raise DataError(
            f"{spec} must have the splits train and test (or validation), got {', '.join(data)} instead.",
            hint="return two splits: (data['…'], data['…']).",
        )
    return data["train"], data[test]


def read_example(example: Any, name: str) -> tuple[Tensor, Any]:
    """Return the image, as a tensor (channels, height, width), and the target of an example, whatever its form."""
    if isinstance(example, Mapping):
        image, target = (_named(example, names, name) for names in (IMAGE_NAMES, TARGET_NAMES))
    elif isinstance(example, (tuple, list)) and len(example) == 2:
        image, target = example
    else:
        raise DataError(f"an example of {name} must be {WANTED}, got {_outline(example)} instead.")
    return image_of(image, name), read_targets(target, lambda error: _no_target(name, error))


def image_of(image: Any, name: str) -> Tensor:
    """Return an image as a tensor (channels, height, width): pixels from 0 to 255 as uint8, floats as they are.

    >>> image_of(np.zeros((4, 6, 3), dtype=np.uint8), "the data").shape  # as Pillow and OpenCV lay images out
    torch.Size([3, 4, 6])
    """
    if not isinstance(image, Tensor):
        array = np.asarray(image)
        if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4):
            array = array.transpose(2, 0, 1)
        image = torch.from_numpy(np.array(array)) if array.dtype.kind in "uif" else image
    if isinstance(image, Tensor) and image.ndim == 2:
        image = image[None]
    is_image = isinstance(image, Tensor) and (image.is_floating_point() or image.dtype == torch.uint8)
    if not is_image or image.ndim != 3:
        raise DataError(
            f"an image of {name} must be a Pillow image, or uint8 or floats of shape (channels, height, width), "
            f"got {_outline(image)} instead."
        )
    found: Tensor = image.float() if image.is_floating_point() else image
    return found


def labels_of(examples: Any, read: Callable[[int], tuple[Tensor, Any]]) -> Tensor | None:
    """Return the class numbers of all examples; None where targets are something else.

    They are looked up where Datasets usually keep them; else every example is read once.
    """
    found = _kept_labels(examples)
    if found is None:
        first = read(0)[1]
        if not _is_class(first):
            return None
        found = [int(read(number)[1]) for number in range(len(examples))]
    labels = torch.as_tensor(found)
    return labels.long() if are_classes(labels) else None


def class_names_of(examples: Any) -> tuple[str, ...] | None:
    """Return the names of the classes where a Dataset knows them."""
    if is_hugging_face(examples):
        column = _column(examples)
        names = getattr(examples.features.get(column), "names", None)
    else:
        while isinstance(examples, Subset):
            examples = examples.dataset
        names = getattr(examples, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def _kept_labels(examples: Any) -> Any:
    if is_hugging_face(examples):
        return examples[_column(examples)]
    if isinstance(examples, Subset):
        labels = _kept_labels(examples.dataset)
        return None if labels is None else torch.as_tensor(labels)[torch.as_tensor(examples.indices)]
    if isinstance(examples, TensorDataset):
        return examples.tensors[1] if len(examples.tensors) == 2 else None
    labels = getattr(examples, "targets", None)  # as the Datasets of torchvision do
    return labels if isinstance(labels, (list, tuple, np.ndarray, Tensor)) and len(labels) == len(examples) else None


def _column(examples: Any) -> str:
    return next((name for name in TARGET_NAMES if name in examples.column_names), TARGET_NAMES[0])


def _named(example: Mapping[str, Any], names: tuple[str, ...], name: str) -> Any:
    for known in names:
        if known in example:
            return example[known]
    raise DataError(
        f"an example of {name} must be {WANTED}, got {', '.join(map(str, example))} instead.",
        hint=f"rename the columns: one of {', '.join(IMAGE_NAMES)} and one of {', '.join(TARGET_NAMES)}.",
    )


def _is_class(target: Any) -> bool:
    return isinstance(target, Tensor) and target.ndim == 0 and are_classes(target[None])


def _no_target(name: str, error: object) -> DataError:
    return DataError(f"a target of {name} must be a number, an array or a dict or tuple of them: {error}.")


def _outline(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
