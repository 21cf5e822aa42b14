"""Examples of users: Datasets, splits of Hugging Face, and arrays, with one or several inputs and targets.

The random numbers of an example's transforms depend only on seed, epoch and number, and not on the number of workers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
)

from depl0._util.random import isolated_random
from depl0.app.data.base import are_classes
from depl0.app.data.schedule import TRANSFORM, Indices, random_stream
from depl0.errors import DataError, Depl0Error

PROTOCOL = "(train, test): two Datasets or splits of Hugging Face, or two pairs of arrays (inputs, targets)"
INPUT_NAMES = ("image", "img", "pixel_values", "images", "pixels", "inputs", "x")
TARGET_NAMES = ("label", "labels", "target", "targets", "fine_label", "class", "y")


@final
class Rows(Dataset[Any]):
    """The rows of arrays in memory: one tensor or several, with one target or several."""

    def __init__(self, pair: Any, name: str, device: torch.device | str = "cpu") -> None:
        arrays = read_pair(pair, name, is_batch=True)
        lengths = {len(tensor) if tensor.ndim else 0 for tensor in pytree.tree_leaves(arrays)}
        if len(lengths) != 1:
            raise DataError(f"{name} must have one length, got {_outline(pair)} instead.")
        self.length = lengths.pop()
        self.arrays = pytree.tree_map(lambda tensor: tensor.to(device), arrays)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return pytree.tree_map(lambda tensor: tensor[number], self.arrays)

    def select(self, numbers: Indices) -> Any:
        """Return the inputs and targets of some rows."""
        places = torch.from_numpy(numbers)
        # index_select copies whole rows; indexing with a tensor would go number by number.
        return pytree.tree_map(lambda tensor: tensor.index_select(0, places.to(tensor.device)), self.arrays)


def as_dataset(part: Any, spec: str) -> Any:
    """Return a part of a user's data as a Dataset: its own, or the rows of a pair of arrays."""
    if type(part) is TensorDataset and len(part.tensors) == 2:
        part = part.tensors
    if isinstance(part, (tuple, list)) and len(part) == 2:
        return Rows(part, f"the arrays of {spec}")
    if isinstance(part, (tuple, list)) or not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
        raise DataError(f"{spec} must return {PROTOCOL}, got {_outline(part)} as one of them instead.")
    return part


@final
@dataclass(frozen=True)
class Examples:
    """The examples of a Dataset. Random transforms depend on seed, epoch and number only."""

    name: str
    """name in error messages"""
    source: Any
    """returns the example of a number, and has a length"""
    seed: int

    def batch(self, epoch: int, numbers: Sequence[int]) -> tuple[Any, Any]:
        """Return the inputs and targets of some examples."""
        return collate([self.read(number, epoch, number) for number in numbers])

    def read(self, number: int, *place: int) -> tuple[Any, Any]:
        """Return the inputs and targets of an example, or raise an error that names it.

        Its random transforms depend on ``place``.
        """
        name = f"example {number:,} of {self.name}"
        seed = int(random_stream(self.seed, TRANSFORM, *place).integers(2**32))
        try:
            with isolated_random(seed, accelerators=False):
                return read_pair(self.source[number], name)
        except Depl0Error:
            raise
        except Exception as error:
            raise DataError(f"{name} cannot be read: {type(error).__name__}: {error}") from error

    def labels(self) -> Tensor | None:
        """Return the class indices of all examples; None if targets are something else.

        They are looked up where Datasets usually keep them; else every example is read once.
        """
        found = _kept_labels(self.source)
        if found is None:
            first = self.read(0, 0)[1]
            if not (isinstance(first, Tensor) and are_classes(first[None])):
                return None
            found = [int(self.read(number, 0)[1]) for number in range(len(self.source))]
        try:
            labels = torch.as_tensor(found)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the labels of {self.name} must be numbers, got {_outline(found)}: {error}.",
                hint="number the classes 0, 1, 2, …",
            ) from error
        return labels.long() if are_classes(labels) else None


def read_pair(example: Any, name: str, *, is_batch: bool = False) -> tuple[Any, Any]:
    """Return the inputs and targets of an example or batch as tensors, or tuples or dicts of them.

    >>> shapes(read_pair(((np.zeros((8, 9, 3), dtype=np.uint8), [0.5, 1.0]), 1), "the example")[0])
    '3×8×9 and 2'
    """
    pair: Any = example
    if isinstance(example, Mapping):
        found = [next((key for key in names if key in example), None) for names in (INPUT_NAMES, TARGET_NAMES)]
        pair = [example[key] for key in found if key is not None]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        shown = ", ".join(map(str, example)) if isinstance(example, Mapping) else _outline(example)
        raise DataError(
            f"{name} must be (inputs, targets), or a dict with an 'image' (or 'inputs') and a 'label' (or 'targets'), "
            f"got {shown} instead.",
            hint="several inputs go into one tuple or dict: ((image, state), label).",
        )
    inputs = as_tensors(pair[0], f"the inputs of {name}", is_input=not is_batch)
    return inputs, as_tensors(pair[1], f"the targets of {name}")


def as_tensors(value: Any, name: str, *, is_input: bool = False) -> Any:
    """Return tensors in place of arrays, numbers and images, in tuples and dicts too; floats become float32."""
    if isinstance(value, Mapping):
        return {str(key): as_tensors(entry, f"{name}[{key!r}]", is_input=is_input) for key, entry in value.items()}
    if isinstance(value, tuple) and not all(isinstance(entry, (int, float)) for entry in value):
        return tuple(as_tensors(entry, f"{name}[{i}]", is_input=is_input) for i, entry in enumerate(value))
    if not isinstance(value, Tensor):
        try:
            array = np.array(value)
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # few operations of torch take such integers
                array = array.astype(np.int64)
            if is_input and array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4):
                array = array.transpose(2, 0, 1)  # as Pillow and OpenCV lay images out
            elif is_input and array.dtype == np.uint8 and array.ndim == 2:
                array = array[None]
            value = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} must be a tensor, an array, numbers, a Pillow image, or a tuple or dict of them, "
                f"got {_outline(value)} instead."
            ) from error
    return value.float() if value.dtype == torch.float64 or (is_input and value.is_floating_point()) else value


def collate(examples: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the inputs and the targets of examples, each stacked."""
    try:
        inputs, targets = (_with_tuples(default_collate(list(part))) for part in zip(*examples, strict=True))
    except (RuntimeError, TypeError, KeyError) as error:
        found = sorted({shapes(part) for example in examples for part in example})
        raise DataError(
            f"the inputs and targets of a batch must have one form and shape each, got {'; '.join(found[:4])} instead.",
            hint="resize images in the transform: torchvision.transforms.v2.Resize((height, width)).",
        ) from error
    return inputs, targets


def _with_tuples(collated: Any) -> Any:
    """Return the result of the default collate with tuples in place of lists."""
    if isinstance(collated, Mapping):
        return {str(key): _with_tuples(value) for key, value in collated.items()}
    return tuple(map(_with_tuples, collated)) if isinstance(collated, (list, tuple)) else collated


def shapes(inputs: Any) -> str:
    """Return the shapes of the inputs of one example as text."""
    return " and ".join("×".join(map(str, tensor.shape)) or "1" for tensor in pytree.tree_leaves(inputs))


def _outline(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(_outline(entry) for entry in value[:4])})"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


# -- labels ------------------------------------------------------------------------------------------------------------


def _kept_labels(examples: Any) -> Any:
    if _is_hugging_face(examples):
        return examples[_column(examples)]
    if isinstance(examples, Subset):
        labels = _kept_labels(examples.dataset)
        return None if labels is None else torch.as_tensor(labels)[torch.as_tensor(examples.indices)]
    if isinstance(examples, Rows):
        return examples.arrays[1] if are_classes(examples.arrays[1]) else None
    labels = getattr(examples, "targets", None)  # as the Datasets of torchvision do
    return labels if isinstance(labels, (list, np.ndarray, Tensor)) and len(labels) == len(examples) else None


def class_names_of(examples: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, if a Dataset has them."""
    if _is_hugging_face(examples):
        names = getattr(examples.features.get(_column(examples)), "names", None)
    else:
        while isinstance(examples, Subset):
            examples = examples.dataset
        names = getattr(examples, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def _is_hugging_face(data: object) -> bool:
    """Return True if data is a split of Hugging Face's ``datasets``."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


def _column(examples: Any) -> str:
    return next((name for name in TARGET_NAMES if name in examples.column_names), TARGET_NAMES[0])
