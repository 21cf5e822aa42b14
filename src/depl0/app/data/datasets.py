"""Torch Datasets of the user's own, and data sets of Hugging Face, as batches.

The order of the examples, and what their transforms draw, depend on seed, epoch and number alone, whatever the number
of workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from depl0._util.random import isolated_random
from depl0.app.data.base import Batches, Data, DataInfo, Target, counted
from depl0.app.data.pixels import Normalise, normalisation
from depl0.app.data.schedule import Indices, InOrder, Schedule, Shuffled, chosen_workers, limited, random_stream
from depl0.app.data.settings import DataSettings
from depl0.app.data.targets import Targets, are_classes, mapped, read_targets, target_shape
from depl0.errors import DataError, Depl0Error, InputError

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


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""of uint8 images with three channels, where nothing else is said: those of ImageNet"""
TRANSFORM = 3
"""what random numbers are for, beside the purposes of schedule.py"""


@final
@dataclass(frozen=True)
class Examples:
    """Training or test examples that are read one by one."""

    name: str
    """as errors call them"""
    source: Any
    """gives an example for a number, and has a length"""

    def __len__(self) -> int:
        return len(self.source)

    def read(self, number: int) -> tuple[Tensor, Any]:
        """Return an image and its target, or say which example cannot be read."""
        try:
            return read_example(self.source[number], self.name)
        except Depl0Error:
            raise
        except Exception as error:
            raise DataError(
                f"example {number:,} of {self.name} cannot be read: {type(error).__name__}: {error}"
            ) from error


def open_datasets(spec: str, train: Any, test: Any, settings: DataSettings, target: Target) -> Data:
    """Make batches of two Datasets, or of two splits of Hugging Face."""
    parts = Examples(f"the training data of {spec}", train), Examples(f"the test data of {spec}", test)
    for part in parts:
        if len(part) == 0:
            raise DataError(f"{part.name} must hold at least one example, but holds none.")
    refuse_settings(spec, settings)
    with isolated_random(_seed(settings.seed, 0), accelerators=False):
        image, first = parts[0].read(0)
        labels = [labels_of(part.source, part.read) for part in parts]
    normalise = normalise_for(image, settings, target)
    limits = {"train": settings.limit_train, "test": settings.limit_test}
    chosen = [limited(len(part), limit, which) for part, (which, limit) in zip(parts, limits.items(), strict=True)]
    numbers = [np.arange(len(part)) if some is None else some for part, some in zip(parts, chosen, strict=True)]
    info = describe(spec, image, first, labels, numbers, normalise, class_names_of(train))
    workers, seed = chosen_workers(settings.workers, target.world), settings.seed
    schedules = Shuffled(len(numbers[0]), settings, target), InOrder(len(numbers[1]), settings, target)
    train_batches, test_batches = (
        DatasetBatches(part.name, ReadExamples(part, seed), schedule, normalise, workers, target.device, some)
        for part, schedule, some in zip(parts, schedules, numbers, strict=True)
    )
    return Data(info, train_batches, test_batches)


def describe(
    spec: str,
    image: Tensor,
    first: Targets,
    labels: list[Tensor | None],
    numbers: list[Indices],
    normalise: Normalise | None,
    names: tuple[str, ...] | None,
) -> DataInfo:
    """Return what there is to know of the data from its first example, its labels and the names of its classes."""
    train_labels, test_labels = labels
    num_classes = counts = None
    if train_labels is not None and test_labels is not None:
        num_classes = int(train_labels.max()) + 1
        names = names if names is not None and len(names) >= num_classes else None
        num_classes = num_classes if names is None else len(names)
        if min(int(part.min()) for part in (train_labels, test_labels)) < 0 or int(test_labels.max()) >= num_classes:
            raise DataError(
                f"The labels of {spec} must be from 0 to {num_classes - 1}, for its training data has no others.",
                hint="number the classes 0, 1, 2, …; numbers to predict, rather than classes, are given as floats.",
            )
        used = [torch.from_numpy(some) for some in numbers]
        counts = counted(num_classes, train_labels[used[0]], test_labels[used[1]])
    channels, height, width = image.shape
    return DataInfo(
        name=spec,
        num_classes=num_classes,
        class_names=None if num_classes is None else names,
        image_shape=(channels, height, width),
        train_size=len(numbers[0]),
        test_size=len(numbers[1]),
        class_counts=counts,
        mean=None if normalise is None else normalise.mean,
        std=None if normalise is None else normalise.std,
        target_shape=target_shape(first[None]) if isinstance(first, Tensor) else None,
    )


def refuse_settings(spec: str, settings: DataSettings) -> None:
    """Refuse what is left to the transforms of a Dataset."""
    if settings.augment not in ("default", "none"):
        raise InputError(
            f"The data setting 'augment' must be left out for {spec}, whose examples have their own transforms, "
            f"got {settings.augment!r} instead.",
            hint="torchvision.transforms.v2 has RandomCrop, RandomHorizontalFlip and many more.",
        )
    if settings.image_size is not None:
        raise InputError(
            f"The data setting 'image_size' must be left out for {spec}, whose examples have their own transforms, "
            f"got {settings.image_size!r} instead.",
            hint="resize in the transform: torchvision.transforms.v2.Resize.",
        )


def normalise_for(image: Tensor, settings: DataSettings, target: Target) -> Normalise | None:
    """Return how pixels from 0 to 255 are normalised; None for floats, which are taken as they are."""
    if image.is_floating_point():
        return None
    channels = len(image)
    own = (MEAN, STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    return Normalise(*normalisation(settings.mean, settings.std, own), target.device)


def _seed(seed: int, *place: int) -> int:
    """Return the seed of what transforms draw for one example."""
    return int(random_stream(seed, TRANSFORM, *place).integers(2**32))


@final
class ReadExamples(Dataset[Any]):
    """Reads one example when asked for its epoch and number. Errors are given back: workers would wrap them."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self._examples, self._seed = examples, seed

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, Any] | Depl0Error:
        """Return image and target, or what is wrong with them."""
        epoch, number = place
        try:
            with isolated_random(_seed(self._seed, epoch, number), accelerators=False):
                return self._examples.read(number)
        except Depl0Error as error:
            return error


@final
class DatasetBatches(Batches):
    """Batches of examples that a Dataset reads when they are needed.

    The Dataset is asked for (epoch, number) and returns image and target, or an error, which workers would wrap.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset[Any],
        schedule: Schedule,
        normalise: Normalise | None,
        workers: int,
        device: torch.device,
        numbers: Indices | None = None,
    ) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._name, self._dataset, self._schedule, self._numbers = name, dataset, schedule, numbers
        self._normalise, self._workers, self._device = normalise, workers, device

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Targets]]:
        """Give the batches of one epoch from a step on."""
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=_Steps(epoch, self._schedule.epoch(epoch)[first_step:], self._numbers),
            collate_fn=_collate,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from the global one
        )
        for batch in loader:
            if isinstance(batch, Depl0Error):
                raise batch
            images, targets = batch
            yield placed(images, targets, self._normalise, self._device, self._name)


@final
class _Steps:
    """Gives epoch and number of each step's examples to the loader."""

    def __init__(self, epoch: int, steps: Sequence[Indices], numbers: Indices | None) -> None:
        self._epoch, self._steps, self._numbers = epoch, steps, numbers

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self._steps:
            chosen = step if self._numbers is None else self._numbers[step]
            yield [(self._epoch, int(number)) for number in chosen]

    def __len__(self) -> int:
        return len(self._steps)


def placed(
    images: Any, targets: Any, normalise: Normalise | None, device: torch.device, name: str
) -> tuple[Tensor, Targets]:
    """Move a batch to the device, normalised."""
    images = images.to(device, non_blocking=True)
    if not images.is_floating_point() and normalise is None:
        raise DataError(f"the images of {name} must all be floats, or all uint8, got both.")
    ready = images if images.is_floating_point() or normalise is None else normalise(images)
    return ready, mapped(targets, lambda tensor: tensor.to(device, non_blocking=True))


def _collate(items: list[Any]) -> Any:
    for item in items:
        if isinstance(item, Depl0Error):
            return item
    shapes = {tuple(image.shape) for image, _ in items}
    if len(shapes) > 1:
        return DataError(
            f"the images of a batch must have one shape, got {' and '.join(map(str, sorted(shapes)[:2]))} instead.",
            hint="resize them in the transform: torchvision.transforms.v2.Resize((height, width)).",
        )
    images, targets = zip(*items, strict=True)
    return torch.stack(images), tuplewise(default_collate(list(targets)))


def tuplewise(targets: Any) -> Targets:
    """Return what the default collate gives, with tuples in place of lists."""
    if isinstance(targets, dict):
        return {str(key): tuplewise(value) for key, value in targets.items()}
    return tuple(tuplewise(value) for value in targets) if isinstance(targets, (list, tuple)) else targets
