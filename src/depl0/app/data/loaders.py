"""Batches from user-defined DataLoaders, in their own order and batch size, identical in every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from depl0._util.random import isolated_random, random_state, set_random_state
from depl0.app.data.base import Batches, Data, Target
from depl0.app.data.datasets import (
    Normalised,
    describe,
    normalised_inputs,
    placed,
    read_pair,
    refuse_settings,
    tuplewise,
)
from depl0.app.data.memory import are_classes
from depl0.app.data.schedule import LOADER, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, InputError
from depl0.search.calibration import IndependentLoader


def open_loaders(spec: str, train: Any, test: Any, settings: DataSettings, target: Target) -> Data:
    """Make batches of two DataLoaders. Each is read once, to find the number of classes."""
    if not (isinstance(train, DataLoader) and isinstance(test, DataLoader)):
        raise DataError(f"{spec} must return two DataLoaders or two Datasets, got one of each.")
    if target.world > 1 or settings.validation:
        raise InputError(
            f"{spec} returned DataLoaders, whose batches cannot be divided between processes or held out for "
            "validation.",
            hint="return Datasets instead: (train_dataset, test_dataset).",
        )
    refuse_settings(spec, settings)
    parts = (
        LoaderBatches(f"the training data of {spec}", train, settings.seed, settings.limit_train, target),
        LoaderBatches(f"the test data of {spec}", test, settings.seed, settings.limit_test, target),
    )
    inputs, targets = next(parts[0].raw(0))
    example = pytree.tree_map(lambda tensor: tensor[0], inputs)
    normalised = normalised_inputs(example, settings, target)
    for part in parts:
        part.normalised = normalised
    num_classes = None
    if are_classes(targets):
        num_classes = 1 + max(int(found.max()) for part in parts for _, found in part.raw(0))
    first = targets[0] if isinstance(targets, Tensor) else targets
    sizes = {"train_size": parts[0].size, "test_size": parts[1].size}
    info = describe(spec, example, first, normalised, num_classes=num_classes, class_names=None, **sizes)
    return Data(info, *parts)


@final
class LoaderBatches(Batches):
    """The batches of a DataLoader. Its random numbers, and those of its transforms, are isolated.

    A later step is reached by reading the earlier ones.
    """

    def __init__(self, name: str, loader: DataLoader[Any], seed: int, limit: int, target: Target) -> None:
        try:
            steps = len(loader)
        except TypeError:
            raise DataError(f"{name} must have a length.", hint="add a __len__ to its IterableDataset.") from None
        if steps == 0:
            raise DataError(f"{name} must hold at least one batch, but holds none.")
        batch = loader.batch_size or 1
        if limit:
            steps = min(steps, max(1, limit // batch))
        examples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else steps * batch
        super().__init__(min(examples, steps * batch), steps)
        self._name, self._loader, self._seed, self._device = name, loader, seed, target.device
        self.normalised: Normalised = {}

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of one epoch from a step on."""
        for step, (inputs, targets) in enumerate(self.raw(epoch)):
            if step >= first_step:
                yield placed(inputs, targets, self.normalised, self._device, self._name)

    def raw(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield the unprocessed batches of one epoch of the loader."""
        seed = int(random_stream(self._seed, LOADER, epoch).integers(2**32))
        own: Any = None
        batches: Any = None
        for _ in range(self.steps):
            with isolated_random(seed, accelerators=False):
                if own is None:
                    batches = iter(IndependentLoader(self._loader))  # calibration reads it too
                else:
                    set_random_state(own)
                batch = next(batches, None)
                own = random_state(accelerators=False)
            if batch is None:
                raise DataError(f"{self._name} gives fewer batches than its length, {self.steps}.")
            yield read_pair(tuplewise(batch), f"a batch of {self._name}", is_batch=True)
