"""Data sets in files: digits, MNIST, Fashion-MNIST and CIFAR, which are read into memory, and folders of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from depl0._util.optional import require, torchvision
from depl0.app.data.base import DataSettings
from depl0.app.data.batches import Source
from depl0.errors import DataError

Part: TypeAlias = tuple[Tensor, Tensor]
"""images, uint8 (number, channels, height, width), and their classes"""

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (*["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"], "Ankle boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLIT_SEED = 0
MAX_RECORDS = 50_000
SITE = "https://www.cs.toronto.edu/~kriz"
AGAIN = "it is damaged or an incomplete copy: download it again."
IMAGE_SIZE = 224
CROP_SHARE = 224 / 256  # of the shorter side, for the centre crop
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""Pillow supports other formats that are programs, and runs an interpreter to draw them."""


def _in_memory(
    name: str,
    parts: Iterable[Part],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    class_names: tuple[str, ...] | None,
    *,
    augment: str = "crop-flip",
    num_classes: int = 10,
) -> Source:
    """Return a data set of small images. ``augment`` is the default of ``data.augment``."""
    train, test = parts
    augmentations = tuple(dict.fromkeys((augment, "crop-flip", "crop", "none")))
    return Source(
        name,
        train,
        test,
        num_classes=num_classes,
        class_names=class_names,
        normalisation=(mean, std),
        augmentations=augmentations,
    )


def read_digits(path: Path) -> Source:
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
    return _in_memory("digits", (first, second), (0.3055,), (0.3760,), DIGITS, augment="none")


# -- MNIST: four idx files, gzipped or not -----------------------------------------------------------------------------


def read_mnist(path: Path) -> Source:
    """Return MNIST from the folder that torchvision keeps it in."""
    return _in_memory("mnist", _mnist_parts("MNIST", path), (0.1307,), (0.3081,), DIGITS, augment="none")


def read_fashion_mnist(path: Path) -> Source:
    """Return Fashion-MNIST from the folder that torchvision keeps it in."""
    return _in_memory("fashion-mnist", _mnist_parts("FashionMNIST", path), (0.2860,), (0.3530,), GARMENTS)


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


_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10 = Cifar("cifar10", "cifar-10-batches-bin", _BATCHES, "test_batch.bin", 10, 1, "cifar-10-binary.tar.gz")
CIFAR100 = Cifar("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", 100, 2, "cifar-100-binary.tar.gz")


def read_cifar10(path: Path) -> Source:
    """Return CIFAR-10 from the folder of its binary files, or the folder around it."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _in_memory("cifar10", _read_cifar(path, CIFAR10)[1:], mean, std, CIFAR10_CLASSES)


def read_cifar100(path: Path) -> Source:
    """Return CIFAR-100 with its 100 fine classes, from the folder of its binary files, or the folder around it."""
    folder, *parts = _read_cifar(path, CIFAR100)
    listed = folder / "fine_label_names.txt"
    names = tuple(listed.read_text(errors="replace").split()[:101]) if listed.is_file() else ()
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _in_memory("cifar100", parts, mean, std, names if len(names) == 100 else None, num_classes=100)


def _read_cifar(path: Path, cifar: Cifar) -> tuple[Path, Part, Part]:
    folder = path / cifar.folder if (path / cifar.folder).is_dir() else path
    missing = [file for file in (*cifar.train, cifar.test) if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder} must hold the binary version of {cifar.name}, but lacks {', '.join(missing)}.",
            hint=f"download it: curl {SITE}/{cifar.archive} | tar xz -C {path}; pickles are not read.",
        )
    train, test = (_cifar_part([folder / file for file in files], cifar) for files in (cifar.train, (cifar.test,)))
    return folder, train, test


def _cifar_part(paths: list[Path], cifar: Cifar) -> Part:
    for path in paths:
        size = path.stat().st_size
        if size == 0 or size % cifar.record or size > MAX_RECORDS * cifar.record:
            raise DataError(f"{path} must have a multiple of {cifar.record:,} bytes, got {size:,} instead.", hint=AGAIN)
    records = np.concatenate([np.fromfile(path, dtype=np.uint8) for path in paths]).reshape(-1, cifar.record)
    labels = torch.from_numpy(records[:, cifar.label_bytes - 1].astype(np.int64))
    pixels = torch.from_numpy(records[:, cifar.label_bytes :].copy()).view(-1, 3, 32, 32)
    largest = int(labels.max())
    if largest >= cifar.num_classes:
        words = f"must be from 0 to {cifar.num_classes - 1}, got {largest} instead."
        raise DataError(f"the labels in {paths[0].parent} {words}", hint=AGAIN)
    return pixels, labels


# -- folders of images -------------------------------------------------------------------------------------------------


def read_folder(path: Path, settings: DataSettings) -> Source:
    """Return the images below ``train`` and ``val`` (or ``test``), in one folder per class, like ImageNet.

    torchvision finds the files and transforms the images. Training takes a random part of each, testing the centre.
    """
    plain, test = image_folders(path, Transform(settings))
    train = plain if settings.augment == "none" else image_folders(path, Transform(settings, random=True))[0]
    return Source("folder", train, test, plain, augmentations=("imagenet", "none"))


def image_folders(path: Path, transform: Any = None) -> tuple[Any, Any]:
    """Return the training and the test images of a folder as Datasets of torchvision."""
    folder = torchvision().datasets.ImageFolder
    train, test = path / "train", path / "val" if (path / "val").is_dir() else path / "test"
    if not (train.is_dir() and test.is_dir()):
        raise DataError(
            f"{path} must be a folder that holds the folders train and val (or test).",
            hint="put the images in train/CLASS/ and val/CLASS/.",
        )
    try:
        parts = tuple(folder(str(part), transform, loader=decode) for part in (train, test))
    except FileNotFoundError as error:
        raise DataError(f"{path} must have one folder per class, with images in each: {error}") from error
    unlike = sorted({*parts[0].classes} ^ {*parts[1].classes})
    if unlike:
        shown = ", ".join(unlike[:5]) + (" and more" if len(unlike) > 5 else "")
        raise DataError(f"{train} and {test.name} must have the same class folders; only one of them has {shown}.")
    return parts[0], parts[1]


@final
class Transform:
    """Turns Pillow images into uint8 tensors of one size: a random part of each, or its centre."""

    def __init__(self, settings: DataSettings, *, random: bool = False) -> None:
        transforms = torchvision().transforms
        self.sides = settings.sides or (IMAGE_SIZE, IMAGE_SIZE)
        self.crop_share = settings.crop_share or CROP_SHARE
        self.mode = transforms.InterpolationMode(settings.interpolation or "bilinear")
        crop = transforms.RandomResizedCrop(self.sides, interpolation=self.mode)
        self.prepare = transforms.Compose([crop, transforms.RandomHorizontalFlip()]) if random else self.centre

    def __call__(self, image: Any) -> Tensor:
        """Return the image as a tensor."""
        tensor: Tensor = torchvision().transforms.functional.pil_to_tensor(self.prepare(image))
        return tensor

    def centre(self, image: Any) -> Any:
        """Return the centre of a resized Pillow image; an image of the wanted size is unchanged."""
        (tall, wide), (width, height) = self.sides, image.size
        if (width, height) == (wide, tall):
            return image
        if width * tall <= height * wide:  # narrower than the wanted shape
            side = round(wide / self.crop_share)
            scaled = [int(side * height / width), side]
        else:
            side = round(tall / self.crop_share)
            scaled = [side, int(side * width / height)]
        functional = torchvision().transforms.functional
        return functional.center_crop(functional.resize(image, scaled, self.mode), list(self.sides))


def decode(path: str) -> Any:
    """Return a file as a Pillow image with three channels."""
    try:
        with require("PIL.Image", "pillow", "to decode image files").open(path, formats=FORMATS) as image:
            return image.convert("RGB")
    except Exception as error:  # the errors of Pillow in a damaged file are not documented: OSError, struct.error, …
        raise DataError(
            f"{path} cannot be decoded as an image: {error}.",
            hint=f"replace it by one of {', '.join(FORMATS)}, or take it out of the folder.",
        ) from error


READERS: dict[str, Callable[[Path], Source]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "fashion-mnist": read_fashion_mnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
}
"""data sets that ``--data NAME:DIR`` reads into memory; the digits need no folder"""
