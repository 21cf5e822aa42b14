"""Datasets, DataLoaders and splits of Hugging Face as data of one's own."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from depl0.app.data import Data, DataSettings, open_data
from depl0.errors import DataError, InputError


class Numbers(Dataset[Any]):
    """Images that say which they are, with random pixels of transforms in the corner."""

    def __init__(self, count: int, shape: tuple[int, ...] = (1, 4, 6), broken: int | None = None) -> None:
        self.count, self.shape, self.broken = count, shape, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number == self.broken:
            raise KeyError("lost")
        image = torch.full(self.shape, float(number))
        image[0, 0, :3] = torch.tensor([torch.rand(()).item(), float(np.random.rand()), random.random()])
        return image, number % 3


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that opens what a function of one's own gives."""

    def open_made(made: Any, world: int = 1, **settings: Any) -> Data:
        module = ModuleType("made_here")
        module.make = lambda: made  # type: ignore[attr-defined]
        module.__file__ = str(tmp_path / "made_here.py")
        monkeypatch.setitem(sys.modules, "made_here", module)
        return open_data("made_here:make", DataSettings(**{"batch_size": 4, **settings}), world=world)

    return open_made


def batches(data: Data, epoch: int = 0, first_step: int = 0) -> list[tuple[list[float], list[int]]]:
    return [(images.flatten().tolist(), labels.tolist()) for images, labels in data.train.epoch(epoch, first_step)]


@pytest.mark.parametrize("kind", ["datasets", "loaders"])
def test_batches_are_a_function_of_seed_epoch_and_step(opened: Any, kind: str) -> None:
    def made() -> tuple[Any, Any]:
        pair = Numbers(10), Numbers(5)
        return pair if kind == "datasets" else tuple(DataLoader(part, batch_size=4, shuffle=True) for part in pair)

    data = opened(made())
    info = data.info
    assert (info.num_classes, info.image_shape, info.train_size, info.test_size) == (3, (1, 4, 6), 10, 5)
    assert info.mean is None, "floats are taken as they are"
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = batches(data)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    torch.manual_seed(99), np.random.seed(99), random.seed(99)
    assert batches(opened(made())) == first == batches(data)
    assert batches(data, first_step=1) == first[1:]
    assert batches(data, epoch=1) != first != batches(opened(made(), seed=1))


def test_workers_change_nothing(opened: Any) -> None:
    assert batches(opened((Numbers(9), Numbers(3)), workers=1)) == batches(opened((Numbers(9), Numbers(3)), workers=0))


def test_pixels_are_normalised_and_classes_named(opened: Any) -> None:
    images, labels = torch.randint(256, (6, 3, 5, 7), dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2])

    class Named(TensorDataset):
        classes = ("cat", "dog", "owl", "fox")

    data = opened((Named(images, labels), Subset(Named(images, labels), [0, 4])))
    assert (data.info.num_classes, data.info.class_names) == (4, ("cat", "dog", "owl", "fox"))
    assert data.info.class_counts == ((2, 2, 2, 0), (1, 1, 0, 0)) and data.info.image_shape == (3, 5, 7)
    ((found, _),) = data.test.epoch(0)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.info.mean, data.info.std))
    torch.testing.assert_close(found, (images[[0, 4]] / 255 - mean) / std, atol=1e-5, rtol=0)


def test_splits_of_hugging_face(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("datasets")

    class Split:
        column_names = ("image", "label")

        def __init__(self, count: int) -> None:
            self.features = {"label": type("ClassLabel", (), {"names": ["cat", "dog"]})()}
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, key: Any) -> Any:
            if key == "label":
                return [number % 2 for number in range(self.count)]
            return {"image": np.full((4, 6, 3), key, dtype=np.uint8), "label": key % 2}  # as Pillow gives it

    package.Dataset, package.DatasetDict = Split, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    data = opened({"train": Split(8), "validation": Split(3)})
    assert (data.info.class_names, data.info.image_shape) == (("cat", "dog"), (3, 4, 6))
    assert (data.info.train_size, data.info.test_size) == (8, 3)
    assert next(iter(data.test.epoch(0)))[1].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"must have the splits train and test \(or validation\), got train instead"):
        opened({"train": Split(8)})


def test_targets_that_are_no_classes(opened: Any) -> None:
    images = torch.rand(6, 1, 4, 4)
    data = opened((TensorDataset(images, torch.rand(6, 2)), TensorDataset(images, torch.rand(6, 2))))
    assert (data.info.num_classes, data.info.target_shape, data.info.num_outputs) == (None, (2,), 2)


def test_what_is_wrong_is_said(opened: Any) -> None:
    good = Numbers(4)
    with pytest.raises(DataError, match=r"example 2 of the training data of made_here:make cannot be read: KeyError"):
        opened((Numbers(4, broken=2), good))
    mixed = [(torch.rand(1, 4, 4 + number % 2), 0) for number in range(4)]

    class Mixed(Numbers):
        def __getitem__(self, number: int) -> tuple[Tensor, int]:
            return mixed[number]

    with pytest.raises(DataError, match=r"must have one shape, got \(1, 4, 4\) and \(1, 4, 5\)"):
        batches(opened((Mixed(4), Mixed(4))))
    with pytest.raises(InputError, match="'augment' must be left out"):
        opened((good, good), augment="crop")
    with pytest.raises(InputError, match="cannot be shared by 2 processes"):
        opened((DataLoader(good), DataLoader(good)), world=2)
    with pytest.raises(DataError, match="at least one example"):
        opened((Numbers(0), good))
