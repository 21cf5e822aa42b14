"""``folder:DIR``: image files in one folder per class, below ``train`` and ``val`` (or ``test``), like ImageNet.

Files are decoded by Pillow, in worker processes if wanted. Training takes a random part of each image, testing the
centre.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from depl0._util.optional import require
from depl0.app.data.base import Batches, Data, DataInfo, Target
from depl0.app.data.datasets import MEAN, STD, DatasetBatches
from depl0.app.data.memory import Normalise, normalisation
from depl0.app.data.parts import make_data
from depl0.app.data.schedule import RESIZED_CROP, Indices, Schedule, Shuffled, chosen_workers, random_stream
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, InputError

IMAGE_SIZE = 224
CROP_SHARE = 224 / 256  # of the shorter side, for the centre crop
LARGEST_OWN = 256
"""largest longer side of files that keep their size"""
INSPECTED = 64
"""number of files whose size is read"""
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of the random part of a training image
TRIES = 10
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""Pillow supports other formats that are programs, and runs an interpreter to draw them."""
MAX_PIXELS = 64_000_000
"""pixels of one image: half a gigabyte while it is decoded"""


@final
@dataclass(frozen=True)
class Resizing:
    """How image files become images of one height and width."""

    sides: tuple[int, int]
    crop_share: float = CROP_SHARE
    interpolation: str = "bilinear"

    def random_crop(self, image: Any, rng: np.random.Generator) -> Any:
        """Return a random part of a Pillow image, resized, and mirrored half of the time."""
        pil = require("PIL.Image", "pillow", "to decode image files")
        width, height = image.size
        part = image.crop(random_part(width, height, rng)).resize(self.sides[::-1], self._filter(pil))
        return part.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if rng.integers(2) else part

    def centre_crop(self, image: Any) -> Any:
        """Return the centre of a resized Pillow image; an image of the wanted size is unchanged."""
        pil = require("PIL.Image", "pillow", "to decode image files")
        (tall, wide), (width, height) = self.sides, image.size
        if (width, height) == (wide, tall):
            return image
        least_wide, least_tall = round(wide / self.crop_share), round(tall / self.crop_share)
        if width * tall <= height * wide:  # narrower than the wanted shape
            scaled = (least_wide, int(least_wide * height / width))
        else:
            scaled = (int(least_tall * width / height), least_tall)
        left, top = round((scaled[0] - wide) / 2), round((scaled[1] - tall) / 2)
        return image.resize(scaled, self._filter(pil)).crop((left, top, left + wide, top + tall))

    def _filter(self, pil: Any) -> Any:
        return pil.Resampling[self.interpolation.upper()]


@final
@dataclass(frozen=True)
class Files(Dataset[Any]):
    """Image files and their classes. The item (epoch, number) is a decoded image and its class, or an error.

    With a seed, images are random crops.
    """

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    resizing: Resizing = Resizing((IMAGE_SIZE, IMAGE_SIZE))
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int] | DataError:
        """Return one image and its class. An error is returned, not raised: workers would wrap it in a traceback."""
        epoch, number = place
        try:
            image = decode(self.paths[number])
            if self.seed is None:
                image = self.resizing.centre_crop(image)
            else:
                image = self.resizing.random_crop(image, random_stream(self.seed, RESIZED_CROP, epoch, number))
        except DataError as error:
            return error
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), self.labels[number]

    def select(self, chosen: Indices, resizing: Resizing) -> Files:
        """Return some of the files, resized in another way."""
        return Files(tuple(self.paths[i] for i in chosen), tuple(self.labels[i] for i in chosen), resizing)


def open_folder(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open a folder of class folders."""
    augment = "imagenet" if settings.augment == "default" else settings.augment
    if augment not in ("imagenet", "none"):
        raise InputError(f"data.augment must be imagenet or none for folder:, got {augment!r} instead.")
    require("PIL.Image", "pillow", "to decode image files")
    mean, std = normalisation(settings, (MEAN, STD))
    classes, train, test = scan(path)
    size = settings.sides or (IMAGE_SIZE, IMAGE_SIZE)
    resizing = Resizing(size, settings.crop_share or CROP_SHARE, settings.interpolation or "bilinear")
    normalise, workers = {3: Normalise(mean, std, target.device)}, chosen_workers(settings.workers, target.world)

    def batches(is_train: bool, numbers: Indices, schedule: Schedule) -> Batches:
        plain = (train if is_train else test).select(numbers, resizing)
        is_augmented = isinstance(schedule, Shuffled) and augment == "imagenet"
        files = replace(plain, seed=settings.seed) if is_augmented else plain
        order = np.arange(len(files))
        return DatasetBatches("folder", files, schedule, normalise, workers, target.device, order, plain)

    describe = partial(DataInfo, name="folder", class_names=classes, image_shape=(3, *size), mean=mean, std=std)
    labels, sizes = (train.labels, test.labels), (len(train), len(test))
    return make_data(describe, len(classes), labels, batches, sizes, settings, target)


def scan(path: Path) -> tuple[tuple[str, ...], Files, Files]:
    """Return the classes, and the image files for training and for testing."""
    train, test = path / "train", path / "val" if (path / "val").is_dir() else path / "test"
    if not (train.is_dir() and test.is_dir()):
        raise DataError(
            f"{path} must be a folder that holds the folders train and val (or test).",
            hint="put the images in train/CLASS/ and val/CLASS/.",
        )
    classes, others = _classes(train), _classes(test)
    if classes != others:
        unlike = sorted(set(classes) ^ set(others))
        shown = ", ".join(unlike[:5]) + (" and more" if len(unlike) > 5 else "")
        raise DataError(f"{train} and {test.name} must have the same class folders; only one of them has {shown}.")
    return classes, _files(train, classes), _files(test, classes)


def own_size(path: Path) -> tuple[int, int] | None:
    """Return the height and width of a folder's images if all inspected images have the same small size."""
    pil = require("PIL.Image", "pillow", "to decode image files")
    paths, found = scan(path)[1].paths, set()
    for file in paths[:: -(-len(paths) // INSPECTED)]:
        with suppress(Exception), pil.open(file, formats=FORMATS) as image:  # damaged files are named when decoded
            found.add((image.height, image.width))
    size = found.pop() if len(found) == 1 else (0, 0)
    return size if 0 < max(size) <= LARGEST_OWN else None


def random_part(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a random part of an image: left, top, right, bottom.

    Its area is from 8 % to 100 % of the image, its width from 3/4 to 4/3 of its height. If none fits in ten tries, it
    is the largest centred part of a shape within those bounds.
    """
    for _ in range(TRIES):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w, endpoint=True)), int(rng.integers(0, height - h, endpoint=True))
            return left, top, left + w, top + h
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def decode(path: str) -> Any:
    """Return a file as a Pillow image with three channels."""
    pil = require("PIL.Image", "pillow", "to decode image files")
    try:
        with pil.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"it has {image.width:,} × {image.height:,} pixels, more than {MAX_PIXELS:,}")
            return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # the errors of Pillow in a damaged file are not documented: OSError, struct.error, …
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be decoded as an image: {reason}.",
            hint=f"replace it by one of {', '.join(FORMATS)}, or take it out of the folder.",
        ) from error


def _classes(part: Path) -> tuple[str, ...]:
    with os.scandir(part) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{part} must have one folder per class, but has none.")
    return tuple(classes)


def _files(part: Path, classes: Sequence[str]) -> Files:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [
            os.path.join(folder, file)
            for folder, _, files in os.walk(part / name, followlinks=True)
            for file in files
            if file.lower().endswith(ENDINGS) and not file.startswith(".")
        ]
        if not found:
            endings = ", ".join(ENDINGS)
            raise DataError(
                f"{part / name} must have at least one image, but has none.", hint=f"files end in {endings}."
            )
        paths += sorted(found)
        labels += [label] * len(found)
    return Files(tuple(paths), tuple(labels))
