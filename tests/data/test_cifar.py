import os
import re
import shutil

import numpy as np
import pytest
import torch

from depl0.app.data import DataSettings, open_data
from depl0.app.data.cifar import CIFAR10, CIFAR100
from depl0.errors import DataError
from tests.support.layouts import pack, write_cifar, write_cifar10, write_cifar100

LAYOUTS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def pixels(data, part="test"):
    batches = getattr(data, part)
    return torch.cat([images for images, _ in batches.epoch(0)]), torch.cat([labels for _, labels in batches.epoch(0)])


def test_records_are_read_as_published(tmp_path):
    folder = write_cifar10(tmp_path, records=20)
    settings = DataSettings(batch_size=100, mean=(0, 0, 0), std=(1 / 255,) * 3, augment="none")
    data = open_data(f"cifar10:{folder}", settings)
    assert (data.info.num_classes, data.info.image_shape) == (10, (3, 32, 32))
    assert (data.info.train_size, data.info.test_size) == (100, 20)
    assert data.info.class_names[3] == "cat"
    records = np.fromfile(folder / "test_batch.bin", dtype=np.uint8).reshape(20, 3073)
    images, labels = pixels(data)
    assert labels.tolist() == records[:, 0].tolist()
    torch.testing.assert_close(images, torch.from_numpy(records[:, 1:]).view(20, 3, 32, 32).float())
    found = {image.round().to(torch.uint8).numpy().tobytes() for image in pixels(data, "train")[0]}
    files = [np.fromfile(folder / file, dtype=np.uint8).reshape(-1, 3073)[:, 1:] for file in CIFAR10.train]
    assert found == {record.tobytes() for record in np.concatenate(files)}


def test_cifar100_has_the_fine_labels(tmp_path):
    folder = write_cifar100(tmp_path, records=120)
    data = open_data(f"cifar100:{folder}", DataSettings(mean=(0, 0, 0), std=(1 / 255,) * 3))
    assert (data.info.num_classes, data.info.train_size, data.info.test_size) == (100, 120, 120)
    images, labels = pixels(data)
    assert labels.tolist() == [number % 100 for number in range(120)]
    records = np.fromfile(folder / "test.bin", dtype=np.uint8).reshape(120, 3074)
    torch.testing.assert_close(images, torch.from_numpy(records[:, 2:]).view(120, 3, 32, 32).float())
    assert data.info.class_names is None
    (folder / "fine_label_names.txt").write_text("\n".join(f"thing_{number}" for number in range(100)))
    assert open_data(f"cifar100:{folder}").info.class_names[7] == "thing_7"


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("where", ["folder", "parent", "archive in folder", "archive"])
def test_the_files_are_found(tmp_path, name, where):
    layout = LAYOUTS[name]
    folder = write_cifar(tmp_path, layout)
    path = tmp_path
    if where == "folder":
        path = folder
    elif where.startswith("archive"):
        archive = pack(folder, tmp_path / layout.archive)
        shutil.rmtree(folder)
        path = archive if where == "archive" else tmp_path
    assert open_data(f"{name}:{path}").info.test_size == 20
    assert folder.is_dir()
    assert open_data(f"{name}:{path}").info.test_size == 20  # the second time, the unpacked files are used
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        [layout.folder, *([layout.archive] if where.startswith("archive") else [])]
    )


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (
            lambda folder: shutil.rmtree(folder),
            "must have the folder cifar-10-batches-bin, its files, or cifar-10-binary",
        ),
        (lambda folder: (folder / "data_batch_4.bin").unlink(), "cifar-10-batches-bin lacks data_batch_4.bin."),
        (lambda folder: (folder / "test_batch.bin").unlink(), "cifar-10-batches-bin lacks test_batch.bin."),
        (
            lambda folder: os.truncate(folder / "data_batch_2.bin", 20_000),
            "data_batch_2.bin must have 30,730,000 bytes (10,000 records of 3,073), or a smaller whole number of "
            "records, got 20,000 bytes instead.",
        ),
        (lambda folder: os.truncate(folder / "test_batch.bin", 0), "test_batch.bin must have 30,730,000 bytes"),
        (
            lambda folder: os.truncate(folder / "data_batch_3.bin", 3073 * 19),
            "data_batch_3.bin has 19 records but another training file has 20",
        ),
        (
            lambda folder: (folder / "data_batch_5.bin").write_bytes(bytes([10]) * 3073 * 20),
            "data_batch_5.bin must be from 0 to 9, got 10 for image 0 instead.",
        ),
        (
            lambda folder: folder.rename(folder.parent / "cifar-10-batches-py"),
            "has the pickled version of cifar10 (cifar-10-batches-py); only the binary one is read",
        ),
    ],
)
def test_missing_and_damaged_files_are_named(tmp_path, break_it, text):
    break_it(write_cifar10(tmp_path))
    with pytest.raises(DataError, match=re.escape(text)) as error:
        open_data(f"cifar10:{tmp_path}")
    assert "depl0 recipes download cifar10 DIR" in error.value.hint


def test_the_size_of_the_cifar100_test_file_is_its_own(tmp_path):
    os.truncate(write_cifar100(tmp_path) / "test.bin", 5)
    with pytest.raises(DataError, match=re.escape("must have 30,740,000 bytes (10,000 records of 3,074)")):
        open_data(f"cifar100:{tmp_path}")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere must be the folder of cifar10, but there is no such folder"):
        open_data(f"cifar10:{tmp_path / 'nowhere'}")


@pytest.mark.skipif("DEPL0_CIFAR10" not in os.environ, reason="DEPL0_CIFAR10 does not say where CIFAR-10 is")
def test_the_real_cifar10():
    settings = DataSettings(batch_size=50_000, augment="none", mean=(0, 0, 0), std=(1, 1, 1))
    data = open_data(f"cifar10:{os.environ['DEPL0_CIFAR10']}", settings)
    assert (data.info.train_size, data.info.test_size) == (50_000, 10_000)
    images, labels = pixels(data)
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert torch.bincount(labels).tolist() == [1000] * 10
    images, labels = pixels(data, "train")
    assert torch.bincount(labels).tolist() == [5000] * 10
    mean = images.double().mean((0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.49140, 0.48216, 0.44653]).double(), rtol=0, atol=1e-5)
