"""The published files of digits, MNIST and CIFAR, and folders of images: read as they are, and damaged ones named."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from depl0._util.optional import import_torchvision
from depl0.app.data import DataSettings, open_data
from depl0.app.data.readers import CIFAR10, CIFAR100, Transform
from depl0.errors import DataError
from tests.support.layouts import write_cifar, write_cifar10, write_folder, write_mnist


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


@pytest.mark.parametrize("damage", [None, "shorter"])
def test_missing_and_damaged_mnist_files_are_errors(tmp_path, damage):
    path = write_mnist(tmp_path) / "MNIST/raw/train-images-idx3-ubyte"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
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


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda folder: (folder / "data_batch_4.bin").unlink(), "but lacks data_batch_4.bin."),
        (
            lambda folder: os.truncate(folder / "data_batch_2.bin", 20_000),
            "a multiple of 3,073 bytes, got 20,000",
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


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_classes_are_the_folders_in_order(tmp_path):
    data = open_data(f"folder:{write_folder(tmp_path, ('cat', 'ant', 'bee'))}", DataSettings(eval_batch_size=4))
    assert data.info.class_names == ("ant", "bee", "cat")
    assert data.info.image_shape == (3, 224, 224)
    assert (data.info.train_size, data.info.test_size) == (15, 9)
    assert torch.cat([labels for _, labels in data.test.epoch(0)]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_workers_give_the_same_batches(tmp_path):
    write_folder(tmp_path)
    here, there = (
        open_data(f"folder:{tmp_path}", DataSettings(batch_size=5, image_size=24, workers=workers))
        for workers in (0, 2)
    )
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for first_step in (0, 1):
        for ours, theirs in zip(here.train.epoch(1, first_step), there.train.epoch(1, first_step), strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [(300, 400), (20, 20)])
@pytest.mark.parametrize(("side", "share", "name"), [(224, 224 / 256, "bilinear"), (36, 0.9, "bicubic")])
def test_test_images_are_those_of_torchvision(size, side, share, name):
    transforms = import_torchvision().transforms
    image, interpolation = picture(*size), transforms.InterpolationMode(name)
    resize = transforms.Resize(round(side / share), interpolation=interpolation)
    reference = transforms.Compose([resize, transforms.CenterCrop(side)])
    found = Transform(DataSettings(image_size=side, crop_share=share, interpolation=name))(image)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), np.array(reference(image)))


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (shutil.rmtree, "must be a folder that holds the folders train and val (or test)."),
        (
            lambda root: (root / "val/bee").rename(root / "val/wasp"),
            "train and val must have the same class folders; only one of them has bee, wasp.",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, break_it, text):
    break_it(write_folder(tmp_path / "images"))
    with pytest.raises(DataError, match=re.escape(text)):
        open_data(f"folder:{tmp_path / 'images'}")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [None, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"])
def test_a_damaged_image_is_named_and_no_program_is_started(tmp_path, monkeypatch, workers, content):
    path = write_folder(tmp_path) / "val/bee/1.JPEG"
    path.write_bytes(path.read_bytes()[:-400] if content is None else content)
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: started.append(words))
    test = open_data(f"folder:{tmp_path}", DataSettings(image_size=16, workers=workers)).test
    with pytest.raises(DataError) as error:
        list(test.epoch(0))
    assert error.value.message.startswith(f"{path} cannot be decoded as an image: ")
    assert "replace it" in error.value.hint and "Traceback" not in str(error.value)
    assert not started
