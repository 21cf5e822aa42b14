"""Small published data sets, read from their own files into memory: digits, MNIST, Fashion-MNIST, CIFAR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from depl0._util.optional import require, torchvision
from depl0.app.data.memory import Arrays, Part
from depl0.errors import DataError

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (*["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"], "Ankle boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLIT_SEED = 0
MAX_RECORDS = 50_000
SITE = "https://www.cs.toronto.edu/~kriz"
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
    first, second = ((images[chosen], torch.from_numpy(labels[chosen])) for chosen in (train, test))
    return Arrays("digits", first, second, (0.3055,), (0.3760,), DIGITS, 10)


# -- MNIST: four idx files, gzipped or not -----------------------------------------------------------------------------


def read_mnist(path: Path) -> Arrays:
    """Return MNIST from the folder that torchvision keeps it in."""
    train, test = _mnist_parts("MNIST", path)
    return Arrays("mnist", train, test, (0.1307,), (0.3081,), DIGITS, 10)


def read_fashion_mnist(path: Path) -> Arrays:
    """Return Fashion-MNIST from the folder that torchvision keeps it in."""
    train, test = _mnist_parts("FashionMNIST", path)
    return Arrays("fashion-mnist", train, test, (0.2860,), (0.3530,), GARMENTS, 10, "crop-flip")


def _mnist_parts(name: str, path: Path) -> Iterator[Part]:
    """Yield training and test data."""
    kind = getattr(torchvision().datasets, name)
    try:
        for train in (True, False):
            data = kind(str(path), train=train)
            if data.data.shape[1:] != (28, 28) or len(data.data) != len(data.targets):
                raise ValueError(f"images of shape {tuple(data.data.shape)}, and {len(data.targets)} labels")
            yield data.data.unsqueeze(1), data.targets.long()
    except (RuntimeError, ValueError, AssertionError, OSError, IndexError) as error:
        raise DataError(
            f"{path} must hold the four files of {name} in the folder {name}/raw: {error}.",
            hint=f"torchvision.datasets.{name}({str(path)!r}, download=True) downloads them.",
        ) from error


# -- CIFAR: the binary version -----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Cifar:
    """The files of one of the CIFAR data sets. A record is its labels, one byte each, and a 3×32×32 image."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    num_classes: int
    label_bytes: int
    """the last one is used"""
    archive: str

    @property
    def record(self) -> int:
        """Return the bytes of one record."""
        return self.label_bytes + 3 * 32 * 32

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of all files with records."""
        return (*self.train, self.test)


_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10 = Cifar("cifar10", "cifar-10-batches-bin", _BATCHES, "test_batch.bin", 10, 1, "cifar-10-binary.tar.gz")
CIFAR100 = Cifar("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", 100, 2, "cifar-100-binary.tar.gz")


def read_cifar10(path: Path) -> Arrays:
    """Return CIFAR-10 from the folder of its binary files, or the folder around it."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Arrays("cifar10", *_read_cifar(path, CIFAR10)[1:], mean, std, CIFAR10_CLASSES, 10, "crop-flip")


def read_cifar100(path: Path) -> Arrays:
    """Return CIFAR-100 with its 100 fine classes, from the folder of its binary files, or the folder around it."""
    folder, train, test = _read_cifar(path, CIFAR100)
    listed = folder / "fine_label_names.txt"
    names = tuple(listed.read_text(errors="replace").split()[:101]) if listed.is_file() else ()
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return Arrays("cifar100", train, test, mean, std, names if len(names) == 100 else None, 100, "crop-flip")


def _read_cifar(path: Path, cifar: Cifar) -> tuple[Path, Part, Part]:
    folders = (path, path / cifar.folder)
    folder = next((each for each in folders if any((each / file).exists() for file in cifar.files)), None)
    missing = cifar.files if folder is None else [file for file in cifar.files if not (folder / file).is_file()]
    if folder is None or missing:
        raise DataError(
            f"{folder or path} must hold the binary version of {cifar.name}, but lacks {', '.join(missing)}.",
            hint=f"download it: curl {SITE}/{cifar.archive} | tar xz -C {path}; pickles are not read.",
        )
    train, test = (_cifar_part([folder / file for file in files], cifar) for files in (cifar.train, (cifar.test,)))
    return folder, train, test


def _cifar_part(paths: list[Path], cifar: Cifar) -> Part:
    for path in paths:
        size = path.stat().st_size
        if size == 0 or size % cifar.record or size > MAX_RECORDS * cifar.record:
            raise DataError(f"{path} must have a multiple of {cifar.record:,} bytes, got {size:,} instead.", hint=AGAIN)
    try:
        records = np.concatenate([np.fromfile(path, dtype=np.uint8) for path in paths]).reshape(-1, cifar.record)
    except OSError as error:
        raise DataError(f"{paths[0].parent} cannot be read: {error.strerror or error}.") from error
    labels = torch.from_numpy(records[:, cifar.label_bytes - 1].astype(np.int64))
    pixels = torch.from_numpy(records[:, cifar.label_bytes :].copy()).view(-1, 3, 32, 32)
    return pixels, _checked(labels, cifar.num_classes, paths[0].parent)


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
