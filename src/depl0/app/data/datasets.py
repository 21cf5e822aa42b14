"""Batches from user-defined torch Datasets and from data sets of Hugging Face.

The order of the examples and the random numbers of their transforms depend only on seed, epoch and number, and not on
the number of workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from depl0._util.random import isolated_random
from depl0.app.data.base import Batches, Data, DataInfo, Target
from depl0.app.data.memory import Normalise, are_classes, count_classes, normalisation, target_shape
from depl0.app.data.parts import make_data
from depl0.app.data.schedule import TRANSFORM, Indices, Schedule, chosen_workers, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, Depl0Error, InputError

INPUT_NAMES = ("image", "img", "pixel_values", "images", "pixels", "inputs", "x")
TARGET_NAMES = ("label", "labels", "target", "targets", "fine_label", "class", "y")
EXPECTED = "(inputs, targets), or a dict with an 'image' (or 'inputs') and a 'label' (or 'targets')"
KINDS = "a tensor, an array, numbers, a Pillow image, or a tuple or dict of them"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and standard deviation, the defaults for uint8 images with three channels"""

Normalised: TypeAlias = dict[int, Normalise]
"""how uint8 images are normalised, by their number of channels"""


def open_datasets(spec: str, train: Any, test: Any, settings: DataSettings, target: Target) -> Data:
    """Make batches of two Datasets, or of two splits of Hugging Face."""
    parts = Examples(f"the training data of {spec}", train), Examples(f"the test data of {spec}", test)
    for part in parts:
        if len(part.source) == 0:
            raise DataError(f"{part.name} must hold at least one example, but holds none.")
    refuse_settings(spec, settings)
    with isolated_random(_seed(settings.seed, 0), accelerators=False):
        inputs, targets = parts[0].read(0)
        labels = [labels_of(part) for part in parts]
    normalised = normalised_inputs(inputs, settings, target)
    names = class_names_of(train)
    num_classes = count_classes(spec, labels[0], labels[1], known=len(names or ()))
    workers = chosen_workers(settings.workers, target.world)

    def batches(is_train: bool, numbers: Indices, schedule: Schedule) -> Batches:
        part = parts[0] if is_train else parts[1]
        source = ReadExamples(part, settings.seed)
        return DatasetBatches(part.name, source, schedule, normalised, workers, target.device, numbers)

    known = None if num_classes is None or len(names or ()) != num_classes else names
    info = partial(describe, spec, inputs, targets, normalised, class_names=known)
    sizes = len(train), len(test)
    return make_data(info, num_classes, (labels[0], labels[1]), batches, sizes, settings, target)


def describe(spec: str, inputs: Any, targets: Any, normalised: Normalised, **known: Any) -> DataInfo:
    """Return the description of a data set from the inputs and targets of one example, and other known properties."""
    is_image = isinstance(inputs, Tensor) and inputs.ndim == 3
    used = normalised.get(inputs.shape[0]) if is_image else None
    return DataInfo(
        name=spec,
        image_shape=tuple(inputs.shape) if is_image else None,
        input_shapes=shapes(inputs),
        mean=None if used is None else used.mean,
        std=None if used is None else used.std,
        target_shape=target_shape(targets[None]) if isinstance(targets, Tensor) else None,
        **known,
    )


def refuse_settings(spec: str, settings: DataSettings) -> None:
    """Raise an error for settings that the transforms of a Dataset are responsible for."""
    for name, value in {"augment": settings.augment, "image_size": settings.image_size}.items():
        if value not in ("default", "none", None):
            raise InputError(
                f"data.{name} must be left out for {spec}, whose examples have their own transforms, "
                f"got {value!r} instead.",
                hint="torchvision.transforms.v2 has Resize, RandomCrop, RandomHorizontalFlip and many more.",
            )


# -- examples ----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Examples:
    """Training or test examples that are read one by one."""

    name: str
    """name in error messages"""
    source: Any
    """returns the example of a number, and has a length"""

    def read(self, number: int) -> tuple[Any, Any]:
        """Return the inputs and targets of an example, or raise an error that names it."""
        try:
            return read_pair(self.source[number], f"example {number:,} of {self.name}")
        except Depl0Error:
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise DataError(f"example {number:,} of {self.name} cannot be read: {found}") from error


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
        said = ", ".join(map(str, example)) if isinstance(example, Mapping) else _outline(example)
        raise DataError(
            f"{name} must be {EXPECTED}, got {said} instead.",
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
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch has no such integers
                array = array.astype(np.int64)
            if is_input and array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4):
                array = array.transpose(2, 0, 1)  # as Pillow and OpenCV lay images out
            value = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} must be {KINDS}, got {_outline(value)} instead.") from error
    if is_input and value.dtype == torch.uint8 and value.ndim == 2:
        value = value[None]
    return value.float() if value.dtype == torch.float64 or (is_input and value.is_floating_point()) else value


def shapes(inputs: Any) -> str:
    """Return the shapes of the inputs of one example as text."""
    return " and ".join("×".join(map(str, tensor.shape)) or "1" for tensor in pytree.tree_leaves(inputs))


def _outline(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        shown = ", ".join(_outline(entry) for entry in value[:4])
        return f"a {type(value).__name__} of {len(value)} ({shown}{', …' if len(value) > 4 else ''})"
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
    if isinstance(examples, TensorDataset):
        return examples.tensors[1] if len(examples.tensors) == 2 else None
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


def is_hugging_face(data: object, kind: str = "Dataset") -> bool:
    """Return True if data is a split, or a ``DatasetDict``, of Hugging Face's ``datasets``."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, getattr(package, kind))


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


def placed(inputs: Any, targets: Any, normalised: Normalised, device: torch.device, name: str) -> tuple[Any, Any]:
    """Move a batch to the device, its images normalised."""

    def ready(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dtype != torch.uint8 or tensor.ndim != 4:
            return tensor
        if tensor.shape[1] not in normalised:
            raise DataError(f"the images of {name} must all be floats, or all uint8 with as many channels, got both.")
        return normalised[tensor.shape[1]](tensor)

    return pytree.tree_map(ready, inputs), pytree.tree_map(lambda t: t.to(device, non_blocking=True), targets)


def _seed(seed: int, *place: int) -> int:
    """Return the seed of the random numbers of the transforms for one example."""
    return int(random_stream(seed, TRANSFORM, *place).integers(2**32))


@final
class ReadExamples(Dataset[Any]):
    """Reads the example of an (epoch, number). Errors are returned, because workers would wrap them."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self._examples, self._seed = examples, seed

    def __getitem__(self, place: tuple[int, int]) -> tuple[Any, Any] | Depl0Error:
        """Return inputs and targets, or the error."""
        epoch, number = place
        try:
            with isolated_random(_seed(self._seed, epoch, number), accelerators=False):
                return self._examples.read(number)
        except Depl0Error as error:
            return error


@final
class DatasetBatches(Batches):
    """Batches of examples that are read on demand.

    The Dataset takes (epoch, number) and returns inputs and targets, or an error. ``plain`` is the same Dataset without
    augmentation.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset[Any],
        schedule: Schedule,
        normalised: Normalised,
        workers: int,
        device: torch.device,
        numbers: Indices,
        plain: Dataset[Any] | None = None,
    ) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._name, self._dataset, self._schedule, self._numbers = name, dataset, schedule, numbers
        self._normalised, self._workers, self._device = normalised, workers, device
        self._plain = dataset if plain is None else plain

    def plain(self) -> DatasetBatches:
        """Return the batches of the Dataset without augmentation, if there is one."""
        others = self._schedule, self._normalised, self._workers, self._device, self._numbers
        return DatasetBatches(self._name, self._plain, *others)

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch from a step on."""
        steps = self._schedule.epoch(epoch)[first_step:]
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=[[(epoch, int(number)) for number in self._numbers[step]] for step in steps],
            collate_fn=_collate,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # otherwise the loader would use the global generator
        )
        for batch in loader:
            if isinstance(batch, Depl0Error):
                raise batch
            inputs, targets = batch
            yield placed(inputs, targets, self._normalised, self._device, self._name)


def _collate(items: Sequence[Any]) -> Any:
    for item in items:
        if isinstance(item, Depl0Error):
            return item
    try:
        return tuple(tuplewise(default_collate(list(part))) for part in zip(*items, strict=True))
    except (RuntimeError, TypeError, KeyError):
        found = sorted({shapes(inputs) for inputs, _ in items} | {shapes(targets) for _, targets in items})
        return DataError(
            f"the inputs and targets of a batch must have one form and shape each, got {'; '.join(found[:4])} instead.",
            hint="resize images in the transform: torchvision.transforms.v2.Resize((height, width)).",
        )


def tuplewise(collated: Any) -> Any:
    """Return the result of the default collate with tuples in place of lists."""
    if isinstance(collated, Mapping):
        return {str(key): tuplewise(value) for key, value in collated.items()}
    return tuple(tuplewise(value) for value in collated) if isinstance(collated, (list, tuple)) else collated
