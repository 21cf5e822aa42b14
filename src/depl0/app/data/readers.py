"""Small published data sets, read from their own files into memory: digits, MNIST, Fashion-MNIST, CIFAR."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast, final

import numpy as np
import torch
from torch import Tensor

from depl0._util.io import open_regular
from depl0._util.optional import require
from depl0.app.data.memory import Arrays, Part
from depl0.errors import DataError

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (*["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"], "Ankle boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLIT_SEED = 0
SIDE = 28
"""height and width of MNIST's images"""
MAX_ITEMS = 1_000_000
AGAIN = "it is damaged or an incomplete copy: download it again."


def read_digits(path: Path) -> Arrays:
    """Return the 8×8 digits of scikit-learn: 1,437 for training and 360 for testing, always the same ones."""
    bunch = require("sklearn.datasets", "scikit-learn", "for the digits").load_digits()
    levels = np.asarray(bunch.images)  # (1797, 8, 8), from 0 to 16
    images = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = np.asarray(bunch.target, dtype=np.int64)
    # Every fifth image of a shuffled list sorted by class is for testing, so each class contributes a fifth.
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    test = np.sort(by_class[::5])
    train = np.setdiff1d(by_class, test)
    return Arrays(
        "digits",
        (images[train], torch.from_numpy(labels[train])),
        (images[test], torch.from_numpy(labels[test])),
        mean=(0.3055,),
        std=(0.3760,),
        class_names=DIGITS,
    )


# -- MNIST: four idx files, gzipped or not -----------------------------------------------------------------------------


def read_mnist(path: Path) -> Arrays:
    """Return MNIST from its four files, in a folder or in one of the sub-folders that other programs make."""
    folder = _find(path, ("mnist", "MNIST/raw", "MNIST"))
    train, test = _mnist_part(folder, "train"), _mnist_part(folder, "t10k")
    return Arrays("mnist", train, test, mean=(0.1307,), std=(0.3081,), class_names=DIGITS)


def read_fashion_mnist(path: Path) -> Arrays:
    """Return Fashion-MNIST from its four files."""
    folder = _find(path, ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"))
    train, test = _mnist_part(folder, "train"), _mnist_part(folder, "t10k")
    return Arrays("fashion-mnist", train, test, (0.2860,), (0.3530,), "crop-flip", GARMENTS)


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> Tensor:
    """Return the bytes of an idx file whose items have a shape, after checking that header and length agree."""
    header_size, item = 8 + 4 * len(shape), int(np.prod(shape, dtype=np.int64))
    try:
        with open_regular(path) as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            header = np.frombuffer(file.read(header_size).ljust(header_size, b"\0"), dtype=">u4")
            magic, count, *sizes = (int(number) for number in header)
            wanted = 0x00000801 + len(shape)
            if magic != wanted or tuple(sizes) != shape or not 0 < count <= MAX_ITEMS:
                kind = f"{SIDE}×{SIDE} images" if shape else "labels"
                raise DataError(
                    f"{path} must be an idx file of {kind} with the magic number 0x{wanted:08x}, "
                    f"got 0x{magic:08x} and the sizes {count, *sizes} instead.",
                    hint="images and labels may have been swapped.",
                )
            values = bytearray(file.read(count * item + 1))  # one more, to notice a longer file
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be decompressed: {error}.", hint=AGAIN) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(values) != count * item:
        found = f"only {len(values):,}" if len(values) < count * item else "more"
        raise DataError(f"{path} must have {count * item:,} bytes after its header, got {found} instead.", hint=AGAIN)
    return torch.frombuffer(values, dtype=torch.uint8).view(count, *shape)


def _mnist_part(folder: Path, part: str) -> Part:
    images_path, labels_path = (_idx_file(folder, f"{part}-{kind}") for kind in ("images", "labels"))
    images, labels = read_idx(images_path, (SIDE, SIDE)).unsqueeze(1), read_idx(labels_path).to(torch.int64)
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images):,} images but {labels_path.name} {len(labels):,} labels.")
    return images, _checked(labels, 10, labels_path)


def _find(path: Path, sub_folders: tuple[str, ...]) -> Path:
    """Return the folder with the files: the given one, or one in it."""
    candidates = (path, *(path / sub for sub in sub_folders))
    return next((folder for folder in candidates if _idx_files(folder, "train-images")), path)


def _idx_files(folder: Path, stem: str) -> list[Path]:
    dimensions = 3 if stem.endswith("images") else 1
    plain = [f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte"]
    return [file for name in plain for end in ("", ".gz") if (file := folder / (name + end)).is_file()]


def _idx_file(folder: Path, stem: str) -> Path:
    found = _idx_files(folder, stem)
    if not found:
        raise DataError(
            f"{folder} must hold {stem}-idx{3 if stem.endswith('images') else 1}-ubyte, or the same with .gz.",
            hint="four files are needed: the images and labels of 'train' and of 't10k'.",
        )
    return found[0]


# -- CIFAR: the binary version -----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Cifar:
    """The files of one of the CIFAR data sets. A record is its labels, one byte each, and a 3×32×32 image."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    records: int
    """in each training file as published; the test file has 10,000"""
    num_classes: int
    label_bytes: int
    """the last one is used"""

    @property
    def record(self) -> int:
        """Return the bytes of one record."""
        return self.label_bytes + 3 * 32 * 32

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of all files with records."""
        return (*self.train, self.test)


_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10 = Cifar("cifar10", "cifar-10-batches-bin", _BATCHES, "test_batch.bin", 10_000, 10, 1)
CIFAR100 = Cifar("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", 50_000, 100, 2)  # labels: coarse, fine


def read_cifar10(path: Path) -> Arrays:
    """Return CIFAR-10 from the folder of its binary files, or the folder around it."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Arrays("cifar10", *_read_cifar(path, CIFAR10)[1:], mean, std, "crop-flip", CIFAR10_CLASSES)


def read_cifar100(path: Path) -> Arrays:
    """Return CIFAR-100 with its 100 fine classes, from the folder of its binary files, or the folder around it."""
    folder, train, test = _read_cifar(path, CIFAR100)
    listed = folder / "fine_label_names.txt"
    names = tuple(listed.read_text(errors="replace").split()[:101]) if listed.is_file() else ()
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Arrays("cifar100", train, test, mean, std, "crop-flip", names if len(names) == 100 else None, 100)


def _read_cifar(path: Path, cifar: Cifar) -> tuple[Path, Part, Part]:
    folders = (path, path / cifar.folder)
    folder = next((each for each in folders if any((each / file).exists() for file in cifar.files)), None)
    missing = cifar.files if folder is None else [file for file in cifar.files if not (folder / file).is_file()]
    if folder is None or missing:
        raise DataError(
            f"{folder or path} must hold the binary version of {cifar.name}, but lacks {', '.join(missing)}.",
            hint=f"`depl0 recipes download {cifar.name} {path}` downloads and unpacks it; pickles are not read.",
        )
    parts = [[_records(folder / file, cifar) for file in files] for files in (cifar.train, (cifar.test,))]
    if len({len(records) for records in parts[0]}) > 1:
        raise DataError(f"the training files in {folder} must have the same number of records.", hint=AGAIN)
    train, test = (_cifar_part(np.concatenate(records), cifar, folder) for records in parts)
    return folder, train, test


def _records(path: Path, cifar: Cifar) -> np.ndarray[Any, Any]:
    size, most = path.stat().st_size, (10_000 if path.name == cifar.test else cifar.records) * cifar.record
    if size == 0 or size % cifar.record or size > most:
        raise DataError(
            f"{path} must have {most:,} bytes, or a smaller multiple of {cifar.record:,}, got {size:,} instead.",
            hint=AGAIN,
        )
    try:
        return np.fromfile(path, dtype=np.uint8).reshape(-1, cifar.record)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _cifar_part(records: np.ndarray[Any, Any], cifar: Cifar, folder: Path) -> Part:
    labels = torch.from_numpy(records[:, cifar.label_bytes - 1].astype(np.int64))
    pixels = torch.from_numpy(records[:, cifar.label_bytes :].copy()).view(-1, 3, 32, 32)
    return pixels, _checked(labels, cifar.num_classes, folder)


def _checked(labels: Tensor, num_classes: int, where: Path) -> Tensor:
    if int(labels.max()) >= num_classes:
        raise DataError(
            f"the labels in {where} must be from 0 to {num_classes - 1}, got {int(labels.max())} instead.", hint=AGAIN
        )
    return labels


READERS: dict[str, Callable[[Path], Arrays]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "fashion-mnist": read_fashion_mnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
}
"""data sets that ``--data NAME:DIR`` reads into memory; the digits need no folder"""
