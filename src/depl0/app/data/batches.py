"""Batches of a data set: read in worker processes or selected in memory, then cropped and normalised on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from depl0._util.progress import check_stop
from depl0.app.data.base import DataInfo, DataSettings, Split, Target, count_classes, is_integer
from depl0.app.data.examples import Examples, Rows, class_names_of, shapes
from depl0.app.data.schedule import Indices, InOrder, Shuffled, chosen_workers, train_val_split
from depl0.errors import DataError, Depl0Error, InputError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""mean and standard deviation of uint8 images with three channels, unless the data set has its own"""
CROP_PADDING = 4
"""zeros on each side of an image before it is cropped"""


@final
@dataclass(frozen=True)
class Source:
    """The training and test examples of a data set, before any setting is applied."""

    name: str
    train: Any
    """a Dataset, a split of Hugging Face, or a pair of tensors, which is moved to the device"""
    test: Any
    plain: Any = None
    """training examples without augmentation, if they differ"""
    num_classes: int = 0
    """number of classes at least"""
    class_names: tuple[str, ...] | None = None
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """mean and standard deviation of the images"""
    augmentations: tuple[str, ...] = ("none",)
    """what ``data.augment`` may be; the first one is the default"""


def open_source(source: Source, settings: DataSettings, target: Target) -> Data:
    """Divide the examples of a data set into parts, and make batches of each."""
    name = source.name
    augment = source.augmentations[0] if settings.augment == "default" else settings.augment
    if augment not in source.augmentations:
        raise InputError(
            f"data.augment must be {' or '.join(source.augmentations)} for {name}, got {augment!r} instead.",
            hint=None if source.augmentations[1:] else "the transforms of your Dataset can augment the images.",
        )

    def examples(part: Any, words: str) -> Examples:
        rows = Rows(part, name, target.device) if isinstance(part, tuple) else part
        return Examples(f"the {words} data of {name}", rows, settings.seed)

    first, second = examples(source.train, "training"), examples(source.test, "test")
    for part in (first, second):
        if len(part.source) == 0:
            raise DataError(f"{part.name} must hold at least one example, but holds none.")
    inputs, targets = first.read(0, 0)
    names = source.class_names or class_names_of(source.train)
    num_classes = count_classes(name, first.labels(), second.labels(), known=max(source.num_classes, len(names or ())))
    place = Placement(_normalisations(inputs, source, settings, target.device), settings.sides, target.device)
    workers = chosen_workers(settings.workers, target.world)
    unaugmented = first if source.plain is None else replace(first, source=source.plain)

    def in_order(examples: Examples, numbers: Indices) -> Batches:
        schedule = InOrder(len(numbers), settings, target)
        return Batches(examples, examples, schedule, numbers, place, workers)

    train, held_out, test = train_val_split((len(first.source), len(second.source)), settings, target.world)
    is_image = isinstance(inputs, Tensor) and inputs.ndim == 3
    used = place.normalise.get(len(inputs)) if is_image else None
    info = DataInfo(
        name=name,
        num_classes=num_classes,
        class_names=None if num_classes is None or len(names or ()) != num_classes else names,
        image_shape=(len(inputs), *(settings.sides or inputs.shape[1:])) if is_image else None,
        train_size=len(train),
        test_size=len(test),
        validation_size=0 if held_out is None else len(held_out),
        input_shapes="" if is_image else shapes(inputs),
        mean=None if used is None else used.mean,
        std=None if used is None else used.std,
        target_shape=tuple(targets.shape) if isinstance(targets, Tensor) else None,
    )
    shuffled = Shuffled(len(train), settings, target)
    return Data(
        info,
        train=Batches(first, unaugmented, shuffled, train, place, workers, augment),
        test=in_order(second, test),
        validation=None if held_out is None else in_order(unaugmented, held_out),
    )


@final
@dataclass(eq=False)
class Batches:
    """Batches of inputs and targets, epoch after epoch.

    Batches are stateless. An epoch that is repeated, or started at a later step, yields bit-identical batches, and
    PyTorch's global random state is neither used nor changed.
    """

    source: Examples
    unaugmented: Examples
    schedule: Shuffled | InOrder
    """the examples of each step, as places in ``numbers``"""
    numbers: Indices
    """the examples of this part"""
    place: Placement
    workers: int
    """number of processes that read examples which are not in memory"""
    augment: str = "none"
    """``"crop"`` and ``"crop-flip"`` crop images on the device"""

    @property
    def size(self) -> int:
        """Return the examples of this rank in one epoch."""
        return self.schedule.size

    @property
    def steps(self) -> int:
        """Return the batches of this rank in one epoch."""
        return self.schedule.steps

    def plain(self) -> Batches:
        """Return these batches without augmentation, or unchanged if user code does the augmentation."""
        return replace(self, source=self.unaugmented, augment="none")

    def epoch(self, number: int, first_step: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch, from one of its steps on.

        Inputs are a tensor (batch, …), a tuple of positional arguments or a dict of keyword arguments. Targets are a
        tensor, or a tuple or dict of tensors. Every tensor is on the device.
        """
        batches = self._read(number, [self.numbers[step] for step in self.schedule.epoch(number)[first_step:]])
        crops = None
        if isinstance(self.schedule, Shuffled) and self.augment in ("crop", "crop-flip"):
            crops = torch.from_numpy(self.schedule.crops(number, CROP_PADDING)).to(self.place.device)
            crops[2] *= self.augment == "crop-flip"
        for step, batch in enumerate(batches, first_step):
            check_stop()
            yield self.place(*batch, None if crops is None else partial(crop_and_flip, crop=crops[:, step]))

    def _read(self, epoch: int, steps: list[Indices]) -> Iterator[tuple[Any, Any]]:
        rows = self.source.source
        if isinstance(rows, Rows):  # nothing is random, and a whole batch is selected at once
            yield from map(rows.select, steps)
            return
        loader: DataLoader[Any] = DataLoader(
            _Steps(self.source, epoch, [step.tolist() for step in steps]),
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=self.workers,
            pin_memory=self.place.device.type == "cuda",
            generator=torch.Generator(),  # otherwise the loader would use the global generator
        )
        for batch in loader:
            if isinstance(batch, Depl0Error):
                raise batch
            yield batch


@final
@dataclass(frozen=True)
class Data:
    """A data set, ready for training and testing."""

    info: DataInfo
    train: Batches
    test: Batches
    validation: Batches | None = None
    """training examples held out for choices (``DataSettings.validation``)"""

    @property
    def split(self) -> Split:
        """Return the part that choices are made on: ``"validation"`` if examples are held out, else ``"test"``."""
        return "test" if self.validation is None else "validation"

    @property
    def for_choices(self) -> Batches:
        """Return the batches of :attr:`split`."""
        return self.test if self.validation is None else self.validation


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


# -- pixels ------------------------------------------------------------------------------------------------------------


@final
class Normalise:
    """Turns uint8 images into floats: (x / 255 − mean) / std, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.mean, self.std = tuple(mean), tuple(std)
        spread = torch.tensor(std, dtype=torch.float64)
        shift = -torch.tensor(mean, dtype=torch.float64) / spread
        self._scale = (1 / (255 * spread)).view(-1, 1, 1).to(device, torch.float32)
        self._shift = shift.view(-1, 1, 1).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (batch, channels, height, width)."""
        return images.to(torch.float32).mul_(self._scale).add_(self._shift)


@final
@dataclass(frozen=True)
class Placement:
    """Moves batches to the device: uint8 images resized and normalised, integer targets as int64."""

    normalise: dict[int, Normalise]
    """by the number of channels"""
    sides: tuple[int, int] | None
    device: torch.device

    def __call__(self, inputs: Any, targets: Any, crop: Callable[[Tensor], Tensor] | None = None) -> tuple[Any, Any]:
        """Return the batch on the device. ``crop`` augments its images before they are normalised."""

        def prepared_input(tensor: Tensor) -> Tensor:
            tensor = tensor.to(self.device, non_blocking=True)
            if tensor.dtype != torch.uint8 or tensor.ndim != 4:
                return tensor
            if self.sides is not None and tensor.shape[2:] != self.sides:
                tensor = _resize(tensor, self.sides)
            return self.normalise[tensor.shape[1]](tensor if crop is None else crop(tensor))

        def prepared_target(tensor: Tensor) -> Tensor:
            tensor = tensor.to(self.device, non_blocking=True)
            return tensor.long() if is_integer(tensor) else tensor

        return pytree.tree_map(prepared_input, inputs), pytree.tree_map(prepared_target, targets)


def _normalisations(inputs: Any, source: Source, settings: DataSettings, device: torch.device) -> dict[int, Normalise]:
    """Return the normalisation of the uint8 images of an example; floats are not normalised."""
    images = [tensor for tensor in pytree.tree_leaves(inputs) if tensor.dtype == torch.uint8 and tensor.ndim == 3]
    found = {}
    for channels in {len(image) for image in images}:
        default = IMAGENET if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        own = source.normalisation or default
        mean, std = settings.mean or own[0], settings.std or own[1]
        for name, values in (("mean", mean), ("std", std)):
            if len(values) != channels:
                raise InputError(
                    f"data.{name} must have {channels} numbers, one per channel of the images, got {len(values)} "
                    "instead."
                )
        found[channels] = Normalise(mean, std, device)
    return found


def _resize(images: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize uint8 images to a height and width, bilinear and without aliasing."""
    resized = functional.interpolate(images.to(torch.float32), sides, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def crop_and_flip(images: Tensor, crop: Tensor, padding: int = CROP_PADDING) -> Tensor:
    """Shift each image within its zero padding, and mirror some.

    ``crop`` has a column for each image: where its crop begins in the padded image, from the top and from the left, and
    1 if it is mirrored. A crop has the image's own size.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> crop_and_flip(image, torch.tensor([[1], [2], [1]]), padding=1).tolist()
    [[[[0, 2], [0, 4]]]]
    """
    top, left, flip = crop
    batch, channels, height, width = images.shape
    padded = functional.pad(images, [padding] * 4)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None] > 0, columns.flip(0), columns) + left[:, None]  # (batch, width)
    rows = torch.arange(height, device=images.device) + top[:, None]  # (batch, height)
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (batch, height, width)
    # One gather for crop and mirror: several times as fast as indexing with rows and columns.
    places = places.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.view(batch, channels, -1).gather(2, places).view(batch, channels, height, width)
