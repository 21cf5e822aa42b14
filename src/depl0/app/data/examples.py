"""Batches from Datasets of users and splits of Hugging Face.

The order of the examples and the random numbers of their transforms depend only on seed, epoch and number, and not on
the number of workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from depl0._util.random import isolated_random
from depl0.app.data.base import Batches, Data, DataInfo, Target, are_classes, count_classes, is_integer
from depl0.app.data.memory import Normalise, normalisation
from depl0.app.data.schedule import TRANSFORM, Indices, Schedule, Shuffled, chosen_workers, make_data, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, Depl0Error

PROTOCOL = "(train, test): two Datasets or splits of Hugging Face, or two pairs of arrays (inputs, targets)"
INPUT_NAMES = ("image", "img", "pixel_values", "images", "pixels", "inputs", "x")
TARGET_NAMES = ("label", "labels", "target", "targets", "fine_label", "class", "y")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation, the defaults for uint8 images with three channels"""

Normalised: TypeAlias = dict[int, Normalise]
"""how uint8 images are normalised, by their number of channels"""


def open_datasets(spec: str, train: Any, test: Any, settings: DataSettings, target: Target, plain: Any = None) -> Data:
    """Make batches of two Datasets, or of two splits of Hugging Face.

    Args:
        spec: name of the data.
        train: the training examples, which may be augmented.
        test: the test examples.
        settings: batch sizes, limits and normalisation.
        target: where batches are needed.
        plain: the training examples without augmentation, if there is such a Dataset.
    """
    first = Examples(f"the training data of {spec}", train, settings.seed)
    unaugmented = first if plain is None else replace(first, source=plain)
    second = Examples(f"the test data of {spec}", test, settings.seed)
    for part in (first, second):
        if len(part.source) == 0:
            raise DataError(f"{part.name} must hold at least one example, but holds none.")
    with isolated_random(_seed(settings.seed, 0), accelerators=False):
        inputs, targets = first.read(0)
        labels = labels_of(first), labels_of(second)
    normalised = normalised_inputs(inputs, settings, target)
    names = class_names_of(first.source)
    num_classes = count_classes(spec, *labels, known=len(names or ()))
    workers = chosen_workers(settings.workers, target.world)

    def batches(is_train: bool, numbers: Indices, schedule: Schedule) -> Batches:
        without = unaugmented if is_train else second
        part = first if is_train and isinstance(schedule, Shuffled) else without
        return DatasetBatches(part, without, schedule, normalised, workers, target.device, numbers)

    is_image = isinstance(inputs, Tensor) and inputs.ndim == 3
    used = normalised.get(inputs.shape[0]) if is_image else None
    info = partial(
        DataInfo,
        name=spec,
        class_names=None if num_classes is None or len(names or ()) != num_classes else names,
        image_shape=tuple(inputs.shape) if is_image else None,
        input_shapes=shapes(inputs),
        mean=None if used is None else used.mean,
        std=None if used is None else used.std,
        target_shape=tuple(targets.shape) if isinstance(targets, Tensor) else None,
    )
    return make_data(info, num_classes, labels, batches, (len(first.source), len(second.source)), settings, target)


@final
class Rows(Dataset[Any]):
    """The rows of arrays in memory: one tensor or several, with one target or several."""

    def __init__(self, pair: Any, name: str) -> None:
        self.arrays = read_pair(pair, name, is_batch=True)
        lengths = {len(tensor) if tensor.ndim else 0 for tensor in pytree.tree_leaves(self.arrays)}
        if len(lengths) != 1:
            raise DataError(f"{name} must have one length, got {_outline(pair)} instead.")
        self.length = lengths.pop()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, numbers: Any) -> Any:
        return pytree.tree_map(lambda tensor: tensor[numbers], self.arrays)


def as_dataset(part: Any, spec: str) -> Any:
    """Return a part of a user's data as a Dataset: that of a DataLoader, or the rows of a pair of arrays."""
    if type(part) is TensorDataset and len(part.tensors) == 2:
        part = part.tensors
    if isinstance(part, (tuple, list)) and len(part) == 2:
        return Rows(part, f"the arrays of {spec}")
    if isinstance(part, DataLoader):
        usual = isinstance(part.sampler, (RandomSampler, SequentialSampler)) and part.batch_size is not None
        if isinstance(part.dataset, IterableDataset) or part.collate_fn is not default_collate or not usual:
            raise DataError(
                f"a DataLoader of {spec} must have a Dataset with a length, PyTorch's default_collate and no sampler "
                "of its own, because only its Dataset is used.",
                hint="return a Dataset whose examples all have one shape.",
            )
        return as_dataset(part.dataset, spec)
    if isinstance(part, (tuple, list)) or not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
        raise DataError(f"{spec} must return {PROTOCOL}, got {_outline(part)} as one of them instead.")
    return part


# -- examples ----------------------------------------------------------------------------------------------------------


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
        if isinstance(self.source, Rows):  # nothing is random, and all rows are selected at once
            rows: tuple[Any, Any] = self.source[torch.as_tensor(numbers)]
            return rows
        found = []
        for number in numbers:
            with isolated_random(_seed(self.seed, epoch, number), accelerators=False):
                found.append(self.read(number))
        return collate(found)

    def read(self, number: int) -> tuple[Any, Any]:
        """Return the inputs and targets of an example, or raise an error that names it."""
        name = f"example {number:,} of {self.name}"
        try:
            return read_pair(self.source[number], name)
        except Depl0Error:
            raise
        except Exception as error:
            raise DataError(f"{name} cannot be read: {type(error).__name__}: {error}") from error


def _seed(seed: int, *place: int) -> int:
    """Return the seed of the random numbers of the transforms for one example."""
    return int(random_stream(seed, TRANSFORM, *place).integers(2**32))


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
        inputs, targets = (tuplewise(default_collate(list(part))) for part in zip(*examples, strict=True))
    except (RuntimeError, TypeError, KeyError) as error:
        found = sorted({shapes(part) for example in examples for part in example})
        raise DataError(
            f"the inputs and targets of a batch must have one form and shape each, got {'; '.join(found[:4])} instead.",
            hint="resize images in the transform: torchvision.transforms.v2.Resize((height, width)).",
        ) from error
    return inputs, targets


def tuplewise(collated: Any) -> Any:
    """Return the result of the default collate with tuples in place of lists."""
    if isinstance(collated, Mapping):
        return {str(key): tuplewise(value) for key, value in collated.items()}
    return tuple(tuplewise(value) for value in collated) if isinstance(collated, (list, tuple)) else collated


def shapes(inputs: Any) -> str:
    """Return the shapes of the inputs of one example as text."""
    return " and ".join("×".join(map(str, tensor.shape)) or "1" for tensor in pytree.tree_leaves(inputs))


def _outline(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(_outline(entry) for entry in value[:4])})"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


# -- labels ------------------------------------------------------------------------------------------------------------


def labels_of(part: Examples) -> Tensor | None:
    """Return the class indices of all examples; None if targets are something else.

    They are looked up where Datasets usually keep them; else every example is read once.
    """
    found = _kept_labels(part.source)
    if found is None:
        first = part.read(0)[1]
        if not (isinstance(first, Tensor) and are_classes(first[None])):
            return None
        found = [int(part.read(number)[1]) for number in range(len(part.source))]
    labels = torch.as_tensor(found)
    return labels.long() if are_classes(labels) else None


def _kept_labels(examples: Any) -> Any:
    if is_hugging_face(examples):
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
    if is_hugging_face(examples):
        names = getattr(examples.features.get(_column(examples)), "names", None)
    else:
        while isinstance(examples, Subset):
            examples = examples.dataset
        names = getattr(examples, "classes", None)
    return tuple(map(str, names)) if isinstance(names, (list, tuple)) else None


def is_hugging_face(data: object) -> bool:
    """Return True if data is a split of Hugging Face's ``datasets``."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


def _column(examples: Any) -> str:
    return next((name for name in TARGET_NAMES if name in examples.column_names), TARGET_NAMES[0])


# -- batches -----------------------------------------------------------------------------------------------------------


def normalised_inputs(inputs: Any, settings: DataSettings, target: Target) -> Normalised:
    """Return the normalisation of the uint8 images of an example; floats are not normalised."""
    images = [tensor for tensor in pytree.tree_leaves(inputs) if tensor.dtype == torch.uint8 and tensor.ndim == 3]
    found = {}
    for channels in {len(image) for image in images}:
        own = (MEAN, STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        found[channels] = Normalise(*normalisation(settings, own), target.device)
    return found


def placed(inputs: Any, targets: Any, normalised: Normalised, device: torch.device) -> tuple[Any, Any]:
    """Move a batch to the device, its images normalised and its integer targets as int64."""

    def input_on_device(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dtype != torch.uint8 or tensor.ndim != 4:
            return tensor
        if tensor.shape[1] not in normalised:
            raise DataError("the images of a batch must all be floats, or all uint8 with as many channels, got both.")
        return normalised[tensor.shape[1]](tensor)

    def target_on_device(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        return tensor.long() if is_integer(tensor) else tensor

    return pytree.tree_map(input_on_device, inputs), pytree.tree_map(target_on_device, targets)


@final
class DatasetBatches(Batches):
    """Batches of examples that are read on demand, in worker processes if wanted.

    Args:
        source: the examples, with augmentation.
        plain: the same without augmentation.
        schedule: the examples of each step, as places in ``numbers``.
        normalised: how images are normalised.
        workers: number of processes that read.
        device: device of the batches.
        numbers: the examples of this part.
    """

    def __init__(
        self,
        source: Examples,
        plain: Examples,
        schedule: Schedule,
        normalised: Normalised,
        workers: int,
        device: torch.device,
        numbers: Indices,
    ) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._source, self._plain, self._schedule = source, plain, schedule
        self._normalised, self._workers, self._device, self._numbers = normalised, workers, device, numbers

    def plain(self) -> DatasetBatches:
        """Return the batches without augmentation."""
        others = self._schedule, self._normalised, self._workers, self._device, self._numbers
        return DatasetBatches(self._plain, self._plain, *others)

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch from a step on."""
        steps = [self._numbers[step].tolist() for step in self._schedule.epoch(epoch)[first_step:]]
        loader: DataLoader[Any] = DataLoader(
            _Steps(self._source, epoch, steps),
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # otherwise the loader would use the global generator
        )
        for batch in loader:
            if isinstance(batch, Depl0Error):
                raise batch
            inputs, targets = batch
            yield placed(inputs, targets, self._normalised, self._device)


@final
@dataclass(frozen=True)
class _Steps(Dataset[Any]):
    """The batches of an epoch, by step. Errors are returned, because workers would wrap them in a traceback."""

    source: Examples
    epoch: int
    steps: list[list[int]]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> tuple[Any, Any] | Depl0Error:
        try:
            return self.source.batch(self.epoch, self.steps[step])
        except Depl0Error as error:
            return error


def _unchanged(batch: Any) -> Any:
    return batch
