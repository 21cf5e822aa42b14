"""DataLoaders of the user's own as batches: in their own order and batch size, epoch after epoch the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from torch import Tensor
from torch.utils.data import DataLoader

from depl0._util.random import isolated_random, random_state, set_random_state
from depl0.app.data.base import Batches, Data, DataInfo, Target
from depl0.app.data.datasets import IMAGE_NAMES, TARGET_NAMES, normalise_for, placed, refuse_settings, tuplewise
from depl0.app.data.pixels import Normalise
from depl0.app.data.schedule import random_stream
from depl0.app.data.settings import DataSettings
from depl0.app.data.targets import Targets, are_classes, target_shape
from depl0.errors import DataError, InputError
from depl0.search.calibration import IndependentLoader

LOADER = 4
"""what random numbers are for, beside the purposes of schedule.py"""


def open_loaders(spec: str, train: Any, test: Any, settings: DataSettings, target: Target) -> Data:
    """Make batches of two DataLoaders. Every one is looked through once, to know the classes."""
    for loader in (train, test):
        if not isinstance(loader, DataLoader):
            raise DataError(f"{spec} must give two DataLoaders, got a {type(loader).__name__} beside one.")
    if target.world > 1:
        raise InputError(
            f"{spec} gives DataLoaders, whose batches cannot be shared by {target.world} processes.",
            hint="return the Datasets instead: (train_dataset, test_dataset).",
        )
    refuse_settings(spec, settings)
    parts = [
        LoaderBatches(f"the training data of {spec}", train, settings.seed, settings.limit_train, target),
        LoaderBatches(f"the test data of {spec}", test, settings.seed, settings.limit_test, target),
    ]
    image, first = next(parts[0].raw(0))
    normalise = normalise_for(image[0], settings, target)
    for part in parts:
        part.normalise = normalise
    num_classes = None
    if are_classes(first):
        largest = [max(int(targets.max()) for _, targets in part.raw(0)) for part in parts]
        num_classes = max(largest) + 1
    channels, height, width = image.shape[1:]
    return Data(
        DataInfo(
            name=spec,
            num_classes=num_classes,
            class_names=None,
            image_shape=(channels, height, width),
            train_size=parts[0].size,
            test_size=parts[1].size,
            mean=None if normalise is None else normalise.mean,
            std=None if normalise is None else normalise.std,
            target_shape=target_shape(first),
        ),
        *parts,
    )


@final
class LoaderBatches(Batches):
    """The batches of a DataLoader. Its random numbers, and those of its transforms, are of its own.

    A later step is reached by going through the earlier ones.
    """

    def __init__(self, name: str, loader: DataLoader[Any], seed: int, limit: int, target: Target) -> None:
        try:
            steps = len(loader)
        except TypeError:
            raise DataError(
                f"{name} must be a DataLoader with a length, and this one does not know how many batches it gives.",
                hint="give its IterableDataset a __len__.",
            ) from None
        if steps == 0:
            raise DataError(f"{name} must give at least one batch, but gives none.")
        batch = loader.batch_size or 1
        if limit:
            steps = min(steps, max(1, limit // batch))
        images = min(_length(loader, steps * batch), steps * batch)
        super().__init__(images, steps)
        self._name, self._loader, self._seed, self._device = name, loader, seed, target.device
        self.normalise: Normalise | None = None

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Targets]]:
        """Give the batches of one epoch from a step on."""
        for step, (images, targets) in enumerate(self.raw(epoch)):
            if step >= first_step:
                yield placed(images, targets, self.normalise, self._device, self._name)

    def raw(self, epoch: int) -> Iterator[tuple[Tensor, Targets]]:
        """Give the batches of one epoch as the loader gives them."""
        seed = int(random_stream(self._seed, LOADER, epoch).integers(2**32))
        own: Any = None
        batches: Any = None
        for _ in range(self.steps):
            with isolated_random(seed, accelerators=False):
                if own is None:
                    batches = iter(IndependentLoader(self._loader))  # calibration reads it too
                else:
                    set_random_state(own)
                try:
                    batch = next(batches)
                except StopIteration:
                    raise DataError(f"{self._name} gives fewer batches than its length, {self.steps}.") from None
                own = random_state(accelerators=False)
            yield _read(batch, self._name)


def _read(batch: Any, name: str) -> tuple[Tensor, Targets]:
    if isinstance(batch, dict):
        keys = [next((key for key in names if key in batch), None) for names in (IMAGE_NAMES, TARGET_NAMES)]
        batch = [batch[key] for key in keys if key is not None]
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        raise DataError(f"a batch of {name} must be (images, targets), got {type(batch).__name__} instead.")
    images, targets = batch
    if images.ndim != 4:
        raise DataError(
            f"the images of {name} must have the shape (number, channels, height, width), "
            f"got {tuple(images.shape)} instead."
        )
    return images, tuplewise(targets)


def _length(loader: DataLoader[Any], otherwise: int) -> int:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return otherwise
