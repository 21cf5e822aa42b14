import gzip
import re
import struct

import numpy as np
import pytest
import torch

from depl0.app.data import DataSettings, open_data
from depl0.app.data.mnist import read_idx
from depl0.errors import DataError
from tests.support.layouts import idx_bytes, write_mnist


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dotted", [True, False])
def test_the_files_may_be_zipped_or_not(tmp_path, name, zipped, dotted):
    write_mnist(tmp_path, zipped=zipped, dotted=dotted)
    data = open_data(f"{name}:{tmp_path}", DataSettings(mean=(0,), std=(1 / 255,)))
    assert (data.info.name, data.info.train_size, data.info.test_size) == (name, 30, 10)
    ((images, labels),) = data.test.epoch(0)
    rng = np.random.default_rng(0)
    rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    wanted = torch.from_numpy(rng.integers(0, 256, (10, 28, 28), dtype=np.uint8))
    torch.testing.assert_close(images[:, 0], wanted.float())
    assert labels.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("name", "sub"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_the_files_are_found_in_sub_folders(tmp_path, name, sub):
    write_mnist(tmp_path / sub)
    assert open_data(f"{name}:{tmp_path}").info.train_size == 30


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere must be a folder with idx files, but there is no such folder"):
        open_data(f"mnist:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("missing", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named(tmp_path, missing):
    (write_mnist(tmp_path) / f"{missing}.gz").unlink()
    with pytest.raises(DataError, match=f"{missing}.gz .or {missing}. is missing in {re.escape(str(tmp_path))}"):
        open_data(f"mnist:{tmp_path}")


def images(count=30, side=28):
    return np.zeros((count, side, side), dtype=np.uint8)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("train-images-idx3-ubyte", b"", "ends within its header of 16 bytes"),
        ("train-images-idx3-ubyte", idx_bytes(images())[:10], "ends within its header of 16 bytes"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(images())[:-1],
            "must have 23,520 bytes after its header, for 30 items, got only 23,519 instead",
        ),
        ("train-images-idx3-ubyte", idx_bytes(images()) + b"x", "for 30 items, got more instead"),
        (
            "train-images-idx3-ubyte",
            b"\x00\x00\x0d\x03" + idx_bytes(images())[4:],
            "must begin with the idx magic number 0x00000803, got 0x00000d03",
        ),
        (
            "t10k-labels-idx1-ubyte",
            idx_bytes(images(10)),
            "must begin with the idx magic number 0x00000801, got 0x00000803",
        ),
        ("train-images-idx3-ubyte", idx_bytes(images(30, 27)), "must hold images of 28x28 pixels, got 27x27"),
        ("train-images-idx3-ubyte", idx_bytes(images(0)), "must hold from 1 to 1,000,000 items, its header says 0"),
        (
            "t10k-images-idx3-ubyte",
            struct.pack(">4I", 0x803, 2**32 - 1, 28, 28),
            "must hold from 1 to 1,000,000 items, its header says 4,294,967,295",
        ),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.zeros(9)), "holds 10 images but t10k-labels-idx1-ubyte holds 9 labels"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.full(10, 10)), "must be from 0 to 9, got 10 for image 0 instead"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, content, text):
    (write_mnist(tmp_path, zipped=False) / file).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(text)) as error:
        open_data(f"mnist:{tmp_path}")
    assert str(tmp_path) in error.value.message


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-20], lambda content: b"no gzip", lambda content: content[:40]]
)
def test_damaged_gzip_files_are_refused(tmp_path, damage):
    path = write_mnist(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be decompressed: .*\n.*fetch it again"):
        open_data(f"mnist:{tmp_path}")


def test_what_a_header_does_not_announce_is_not_decompressed(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(5)) + bytes(50_000_000)))
    with pytest.raises(DataError, match="must have 5 bytes after its header, for 5 items, got more instead"):
        read_idx(path, 0x801)
