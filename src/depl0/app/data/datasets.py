"""Torch Datasets of the user's own, and data sets of Hugging Face, as batches.

The order of the examples, and what their transforms draw, depend on seed, epoch and number alone, whatever the number
of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from depl0._util.random import isolated_random
from depl0.app.data.base import Batches, Data, DataInfo, Target, counted
from depl0.app.data.examples import class_names_of, labels_of, read_example
from depl0.app.data.pixels import Normalise, normalisation
from depl0.app.data.schedule import Indices, InOrder, Schedule, Shuffled, limited, random_stream
from depl0.app.data.settings import DataSettings
from depl0.app.data.targets import Targets, mapped, target_shape
from depl0.app.data.workers import chosen_workers
from depl0.errors import DataError, Depl0Error, InputError

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
    numbers = limited(len(parts[0]), settings.limit_train)
    numbers = np.arange(len(parts[0])) if numbers is None else numbers
    names = class_names_of(train)
    info = describe(spec, image, first, labels, numbers, len(parts[1]), normalise, names)
    workers, seed = chosen_workers(settings.workers, target.world), settings.seed
    shuffled, in_order = Shuffled(len(numbers), settings, target), InOrder(len(parts[1]), settings, target)
    order = np.arange(len(parts[1]))
    return Data(
        info,
        train=DatasetBatches(parts[0], numbers, shuffled, normalise, seed, workers, target.device),
        test=DatasetBatches(parts[1], order, in_order, normalise, seed, workers, target.device),
    )


def describe(
    spec: str,
    image: Tensor,
    first: Targets,
    labels: list[Tensor | None],
    numbers: Indices,
    test_size: int,
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
        counts = counted(num_classes, train_labels[torch.from_numpy(numbers)], test_labels)
    channels, height, width = image.shape
    return DataInfo(
        name=spec,
        num_classes=num_classes,
        class_names=None if num_classes is None else names,
        image_shape=(channels, height, width),
        train_size=len(numbers),
        test_size=test_size,
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
    """Batches of examples that are read when they are needed."""

    def __init__(
        self,
        examples: Examples,
        numbers: Indices,
        schedule: Schedule,
        normalise: Normalise | None,
        seed: int,
        workers: int,
        device: torch.device,
    ) -> None:
        super().__init__(schedule.size, schedule.steps)
        self._examples = examples
        self._numbers = numbers
        self._schedule = schedule
        self._normalise = normalise
        self._seed = seed
        self._workers = workers
        self._device = device

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Targets]]:
        """Give the batches of one epoch from a step on."""
        steps = [self._numbers[step] for step in self._schedule.epoch(epoch)[first_step:]]
        loader: DataLoader[Any] = DataLoader(
            ReadExamples(self._examples, self._seed),
            batch_sampler=[[(epoch, int(number)) for number in step] for step in steps],
            collate_fn=_collate,
            num_workers=self._workers,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from the global one
        )
        for batch in loader:
            if isinstance(batch, Depl0Error):
                raise batch
            images, targets = batch
            yield placed(images, targets, self._normalise, self._device, self._examples.name)


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
