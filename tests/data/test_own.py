"""Data of the user's own: arrays, Datasets and splits of Hugging Face, with one or several inputs."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from depl0.app.data import Data, DataSettings, open_data
from depl0.errors import DataError, InputError


class Numbers(Dataset[Any]):
    """Images that show their own number, with random pixels of transforms in the corner."""

    def __init__(self, count: int, shape: tuple[int, ...] = (1, 4, 6), broken: int | None = None) -> None:
        self.count, self.shape, self.broken = count, shape, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number == self.broken:
            raise KeyError("lost")
        image = torch.full(self.shape, float(number))
        image[0, 0, :3] = torch.tensor([torch.rand(()).item(), float(np.random.rand()), random.random()])
        return image, number % 3


class Examples(Dataset[Any]):
    """The given examples."""

    def __init__(self, examples: list[Any]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> Any:
        return self.examples[number]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that opens the data that a user's function returns."""

    def open_made(made: Any, rank: int = 0, world: int = 1, **settings: Any) -> Data:
        module = ModuleType("made_here")
        module.make = lambda: made  # type: ignore[attr-defined]
        module.__file__ = str(tmp_path / "made_here.py")
        monkeypatch.setitem(sys.modules, "made_here", module)
        return open_data("made_here:make", DataSettings(**{"batch_size": 4, **settings}), rank=rank, world=world)

    return open_made


def batches(data: Data, epoch: int = 0, first_step: int = 0) -> list[Any]:
    return [pytree.tree_map(Tensor.tolist, batch) for batch in data.train.epoch(epoch, first_step)]


# -- names and functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text", "hint"),
    [
        ("cifra10:x", "got 'cifra10:x' instead.", "did you mean cifar10:DIR"),
        ("digit", "The data must be one of cifar100:DIR, cifar10:DIR, digits, ", "did you mean digits?"),
        ("nowhere.py:make", "needs the file nowhere.py; found no file there", ""),
    ],
)
def test_wrong_specs_are_errors(spec: str, text: str, hint: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)) as error:
        open_data(spec)
    assert hint in (error.value.hint or "")


OWN = """
import numpy, torch
images = torch.arange(4 * 2 * 3 * 3).view(4, 2, 3, 3).to(torch.uint8)
labels = [0, 1, 2, 1]
def make(): return (images, labels), (images[:2].numpy(), numpy.array(labels[:2], dtype=numpy.uint16))
def needs(rank): return make()
"""


def test_arrays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    data = open_data(f"{tmp_path / 'own.py'}:make", DataSettings(batch_size=4, augment="none"))
    assert (data.info.num_classes, data.info.image_shape) == (3, (2, 3, 3))
    ((images, labels),) = data.test.epoch(0)
    torch.testing.assert_close(images.flatten(), (torch.arange(36) / 255 - 0.5) / 0.5)
    assert labels.dtype == torch.int64 and labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="cannot be called: missing a required argument: 'rank'"):
        open_data(f"{tmp_path / 'own.py'}:needs")


# -- Datasets ----------------------------------------------------------------------------------------------------------


def test_batches_are_a_function_of_seed_epoch_and_step(opened: Any) -> None:
    def made() -> tuple[Any, Any]:
        return Numbers(10), Numbers(5)

    data = opened(made())
    info = data.info
    assert (info.num_classes, info.image_shape, info.train_size, info.test_size) == (3, (1, 4, 6), 10, 5)
    assert info.mean is None, "floats are used as they are"
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = batches(data)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    torch.manual_seed(99), np.random.seed(99), random.seed(99)
    assert batches(opened(made())) == first == batches(data)
    assert batches(data, first_step=1) == first[1:]
    assert batches(data, epoch=1) != first != batches(opened(made(), seed=1))


def test_images_are_normalised_and_classes_named(opened: Any) -> None:
    images, labels = torch.randint(256, (6, 3, 5, 7), dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2])

    class Named(TensorDataset):
        classes = ("cat", "dog", "owl", "fox")

    data = opened((Named(images, labels), Subset(Named(images, labels), [0, 4])))
    assert (data.info.num_classes, data.info.class_names) == (4, ("cat", "dog", "owl", "fox"))
    assert data.info.image_shape == (3, 5, 7)
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
            return {"image": np.full((4, 6, 3), key, dtype=np.uint8), "label": key % 2}  # as Pillow lays it out

    package.Dataset, package.DatasetDict = Split, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    data = opened({"train": Split(8), "validation": Split(3)})
    assert (data.info.class_names, data.info.image_shape) == (("cat", "dog"), (3, 4, 6))
    assert (data.info.train_size, data.info.test_size) == (8, 3)
    assert next(iter(data.test.epoch(0)))[1].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"must have the splits train and test \(or validation\), got train instead"):
        opened({"train": Split(8)})


# -- several inputs and targets ----------------------------------------------------------------------------------------


def two_inputs(count: int, form: str) -> list[Any]:
    """Examples with an image and a state, and a class and a vector, which all show their own number."""
    found = []
    for number in range(count):
        image = torch.full((3, 4, 4), number, dtype=torch.uint8)
        state, vector = torch.tensor([number / 2, 1.0]), torch.tensor([float(number), 0.0])
        pair: Any = ((image, state), (number % 3, vector))
        if form == "dicts":
            pair = {"image": image, "state": state}, {"kind": number % 3, "vector": vector}
        found.append({"inputs": pair[0], "targets": pair[1]} if form == "one dict" else pair)
    return found


@pytest.mark.parametrize("form", ["tuples", "dicts", "one dict"])
def test_examples_may_have_several_inputs_and_targets(opened: Any, form: str) -> None:
    data = opened(tuple(Examples(two_inputs(count, form)) for count in (8, 3)), mean=(0, 0, 0), std=(1 / 255,) * 3)
    assert (data.info.image_shape, data.info.num_classes, data.info.num_outputs) == (None, None, None)
    assert data.info.shape == "3×4×4 and 2"
    names_in = {"dicts": (["image", "state"], ["kind", "vector"])}.get(form, ([0, 1], [0, 1]))
    seen = []
    for inputs, targets in [*data.train.epoch(1), *data.test.epoch(0)]:
        image, state = (inputs[name] for name in names_in[0])
        sort, vector = (targets[name] for name in names_in[1])
        number = image[:, 0, 0, 0].round()
        assert image.dtype == torch.float32 and torch.equal(state[:, 0], number / 2)
        assert torch.equal(sort, number.long() % 3) and torch.equal(vector[:, 0], number)
        seen += number.long().tolist()
    assert sorted(seen) == sorted([*range(8), *range(3)])
    assert batches(data, 1, first_step=1) == batches(data, 1)[1:]


GOOD = Numbers(4)


@pytest.mark.parametrize(
    ("made", "settings", "text"),
    [
        ((Numbers(4, broken=2), GOOD), {}, "example 2 of the training data of made_here:make cannot be read: KeyError"),
        ((DataLoader(GOOD), GOOD), {}, "must return (train, test): two Datasets or splits of Hugging Face"),
        (
            (Examples([(torch.rand(1, 4, 4), torch.rand(2), 1)]), GOOD),
            {},
            "must be (inputs, targets), or a dict with an 'image' (or 'inputs') and a 'label' (or 'targets'), got a "
            "tuple of 3 (Tensor of shape (1, 4, 4), Tensor of shape (2,), int) instead.",
        ),
        ((Examples([(torch.rand(1, 4, 4 + n), 0) for n in range(2)]), Numbers(1)), {}, "one form and shape each, got"),
    ],
)
def test_unsupported_examples_are_named(opened: Any, made: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises((DataError, InputError), match=re.escape(text)):
        batches(opened(made, **settings))
