"""The published files of digits, MNIST and CIFAR: read as they are, and damaged ones named."""

import os
import re
import shutil
import sys

import numpy as np
import pytest
import torch

from depl0.app.data import DataSettings, open_data
from depl0.app.data.readers import CIFAR10, CIFAR100
from depl0.errors import DataError, NotInstalledError
from tests.support.layouts import write_cifar, write_cifar10, write_cifar100, write_mnist


def pixels(data, part="test"):
    batches = list(getattr(data, part).epoch(0))
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


# -- digits ------------------------------------------------------------------------------------------------------------


def test_the_digits_are_split_fairly_and_normalised_by_the_training_images():
    data = open_data("digits", DataSettings(eval_batch_size=1000, mean=(0,), std=(1 / 255,)))
    images, labels = pixels(data)
    assert (data.info.train_size, data.info.test_size) == (1437, 360)
    counts = torch.bincount(labels)
    assert (int(counts.min()), int(counts.max())) == (35, 37)
    assert labels[:8].tolist() == [8, 6, 9, 9, 1, 1, 0, 1]
    assert images.max().round() == 255
    images, _ = pixels(open_data("digits", DataSettings(batch_size=1437)), "train")
    assert abs(images.mean()) < 1e-3 and abs(images.std() - 1) < 1e-3


def test_without_scikit_learn_the_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(NotInstalledError, match="scikit-learn is needed for the digits, but not installed"):
        open_data("digits")


# -- MNIST -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_is_read_from_the_folder_of_torchvision(tmp_path, name, folder):
    write_mnist(tmp_path, folder)
    data = open_data(f"{name}:{tmp_path}", DataSettings(mean=(0,), std=(1 / 255,)))
    assert (data.info.name, data.info.train_size, data.info.test_size) == (name, 30, 10)
    images, labels = pixels(data)
    rng = np.random.default_rng(0)
    rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    wanted = torch.from_numpy(rng.integers(0, 256, (10, 28, 28), dtype=np.uint8))
    torch.testing.assert_close(images[:, 0], wanted.float())
    assert labels.tolist() == list(range(10))


@pytest.mark.parametrize("damage", [None, b"", b"no idx file", "shorter"])
def test_missing_and_damaged_mnist_files_are_errors(tmp_path, damage):
    path = write_mnist(tmp_path) / "MNIST/raw/train-images-idx3-ubyte"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "shorter" else damage)
    with pytest.raises(DataError, match="must hold the four files of MNIST in the folder MNIST/raw: ") as error:
        open_data(f"mnist:{tmp_path}")
    assert "download=True" in error.value.hint


# -- CIFAR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cifar", "records"), [(CIFAR10, 20), (CIFAR100, 120)])
@pytest.mark.parametrize("inside", [True, False])
def test_records_are_read_as_published(tmp_path, cifar, records, inside):
    folder = write_cifar(tmp_path, cifar, records)
    settings = DataSettings(batch_size=600, mean=(0, 0, 0), std=(1 / 255,) * 3, augment="none")
    data = open_data(f"{cifar.name}:{folder if inside else tmp_path}", settings)
    assert (data.info.num_classes, data.info.image_shape) == (cifar.num_classes, (3, 32, 32))
    assert (data.info.train_size, data.info.test_size) == (len(cifar.train) * records, records)
    written = np.fromfile(folder / cifar.test, dtype=np.uint8).reshape(records, cifar.record)
    images, labels = pixels(data)
    assert labels.tolist() == written[:, cifar.label_bytes - 1].tolist()
    torch.testing.assert_close(images, torch.from_numpy(written[:, cifar.label_bytes :]).view(-1, 3, 32, 32).float())
    found = {image.round().to(torch.uint8).numpy().tobytes() for image in pixels(data, "train")[0]}
    files = [np.fromfile(folder / file, dtype=np.uint8).reshape(-1, cifar.record) for file in cifar.train]
    assert found == {record[cifar.label_bytes :].tobytes() for record in np.concatenate(files)}


def test_class_names(tmp_path):
    assert open_data(f"cifar10:{write_cifar10(tmp_path)}").info.class_names[3] == "cat"
    folder = write_cifar100(tmp_path)
    assert open_data(f"cifar100:{folder}").info.class_names is None
    (folder / "fine_label_names.txt").write_text("\n".join(f"thing_{number}" for number in range(100)))
    assert open_data(f"cifar100:{folder}").info.class_names[7] == "thing_7"


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (shutil.rmtree, "must hold the binary version of cifar10, but lacks data_batch_1.bin, data_batch_2.bin"),
        (lambda folder: (folder / "data_batch_4.bin").unlink(), "but lacks data_batch_4.bin."),
        (
            lambda folder: os.truncate(folder / "data_batch_2.bin", 20_000),
            "a multiple of 3,073 bytes, got 20,000",
        ),
        (
            lambda folder: os.truncate(folder / "test_batch.bin", 0),
            "a multiple of 3,073 bytes, got 0",
        ),
        (
            lambda folder: (folder / "data_batch_5.bin").write_bytes(bytes([10]) * 3073 * 20),
            "must be from 0 to 9, got 10 instead",
        ),
    ],
)
def test_missing_and_damaged_records_are_named(tmp_path, break_it, text):
    break_it(write_cifar10(tmp_path))
    with pytest.raises(DataError, match=re.escape(text)) as error:
        open_data(f"cifar10:{tmp_path}")
    assert "download" in error.value.hint


@pytest.mark.skipif("DEPL0_CIFAR10" not in os.environ, reason="the variable DEPL0_CIFAR10 is not set to its folder")
def test_the_real_cifar10():
    settings = DataSettings(batch_size=50_000, augment="none", mean=(0, 0, 0), std=(1, 1, 1))
    data = open_data(f"cifar10:{os.environ['DEPL0_CIFAR10']}", settings)
    assert (data.info.train_size, data.info.test_size) == (50_000, 10_000)
    labels = pixels(data)[1]
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    mean = pixels(data, "train")[0].double().mean((0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.49140, 0.48216, 0.44653]).double(), rtol=0, atol=1e-5)
