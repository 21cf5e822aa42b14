"""``folder:DIR``: image files in one folder for each class, below ``train`` and ``val`` (or ``test``), like ImageNet.

Files are decoded by Pillow, in worker processes if wanted. Training takes a random part of each image, testing the
middle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from depl0._util.optional import require
from depl0.app.data.base import Batches, Data, DataInfo, Target, counted
from depl0.app.data.datasets import MEAN, STD, DatasetBatches
from depl0.app.data.pixels import Normalise, normalisation
from depl0.app.data.registry import register
from depl0.app.data.schedule import (
    RESIZED_CROP,
    Indices,
    InOrder,
    Shuffled,
    chosen_workers,
    held_out,
    limited,
    random_stream,
)
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, Depl0Error, InputError

IMAGE_SIZE = 224
CROP_SHARE = 224 / 256  # of the shorter side, when the middle is cut out
LARGEST_OWN = 256
"""the longer side of files that are taken in the size they have"""
LOOKED_AT = 64
"""files whose size is looked at"""
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of the random part of a training image
TRIES = 10
ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""What a file may hold, whatever its name. Pillow knows others that are programs, and starts one to draw them."""
MAX_PIXELS = 64_000_000
"""Of one image: half a gigabyte while it is decoded."""
OTHERS: dict[str, tuple[bytes, ...]] = {
    "EPS (PostScript)": (b"%!PS", b"\xc5\xd0\xd3\xc6"),
    "PDF": (b"%PDF",),
    "SVG or other XML": (b"<svg", b"<?xml"),
    "WMF or EMF": (b"\xd7\xcd\xc6\x9a", b"\x01\x00\x00\x00"),
    "Photoshop": (b"8BPS",),
    "JPEG 2000": (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"),
    "an icon": (b"\x00\x00\x01\x00", b"\x00\x00\x02\x00", b"icns"),
    "a ZIP archive or PyTorch file": (b"PK\x03\x04",),
    "a pickle": (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
}
"""First bytes of what is refused by name."""

Item = tuple[Tensor, int]
Place = tuple[int, int]
"""Epoch and number of an image."""


@final
@dataclass(frozen=True)
class Files:
    """The image files of one part, and the class of each."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def selected(self, chosen: Indices) -> Files:
        """Return some of the files."""
        return Files(tuple(self.paths[i] for i in chosen), tuple(self.labels[i] for i in chosen))


@register("folder")
def open_folder(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open a folder of class folders."""
    augment = "imagenet" if settings.augment == "default" else settings.augment
    if augment not in ("imagenet", "none"):
        raise InputError(
            f"The data setting 'augment' cannot be {augment!r} for folder:, whose images differ in size.",
            hint="use 'imagenet' or 'none'.",
        )
    require("PIL.Image", "pillow", "to decode image files")
    mean, std = normalisation(settings.mean, settings.std, (MEAN, STD))
    classes, train, test = scan(path)
    chosen = limited(len(train.paths), settings.limit_train)
    if chosen is not None:
        train = train.selected(chosen)
    validation = None
    divided = held_out(len(train.paths), settings.validation, target.world)
    if divided is not None:
        train, validation = (train.selected(part) for part in divided)

    chosen = limited(len(test.paths), settings.limit_test, "test")
    test = test if chosen is None else test.selected(chosen)

    size = settings.sides or (IMAGE_SIZE, IMAGE_SIZE)
    resizing = Resizing(size, settings.crop_share or CROP_SHARE, settings.interpolation or "bilinear")
    decoded_train = DecodedFiles(train, resizing, settings.seed if augment == "imagenet" else None)
    normalise, workers = Normalise(mean, std, target.device), chosen_workers(settings.workers, target.world)
    shuffled = Shuffled(len(train.paths), settings, target)

    def in_order(files: Files) -> Batches:
        schedule = InOrder(len(files.paths), settings, target)
        return DatasetBatches(
            "folder", DecodedFiles(files, resizing, None), schedule, normalise, workers, target.device
        )

    return Data(
        DataInfo(
            name="folder",
            num_classes=len(classes),
            class_names=classes,
            image_shape=(3, *size),
            train_size=len(train.paths),
            test_size=len(test.paths),
            validation_size=0 if validation is None else len(validation.paths),
            class_counts=counted(len(classes), train.labels, test.labels),
            reading=resizing.in_words(sizes_of(train), augment == "imagenet"),
            mean=mean,
            std=std,
        ),
        train=DatasetBatches("folder", decoded_train, shuffled, normalise, workers, target.device),
        test=in_order(test),
        validation=None if validation is None else in_order(validation),
        plain=DatasetBatches(
            "folder", DecodedFiles(train, resizing, None), shuffled, normalise, workers, target.device
        ),
    )


def scan(path: Path) -> tuple[tuple[str, ...], Files, Files]:
    """List the classes, and the image files for training and for testing."""
    if not path.is_dir():
        raise DataError(f"{path} must be a folder with the folders train and val, but there is no such folder.")
    parts = [path / "train", path / "val" if (path / "val").is_dir() else path / "test"]
    for part, name in zip(parts, ("train", "val (or test)"), strict=True):
        if not part.is_dir():
            raise DataError(
                f"{path} must have the folder {name}, but has not.",
                hint="put the images in train/CLASS/ and val/CLASS/.",
            )
    classes, test_classes = (_classes(part) for part in parts)
    if classes != test_classes:
        only = {
            part.name: sorted(set(ours) - set(others)) for part, ours, others in _both(parts, classes, test_classes)
        }
        found = "; ".join(f"only in {name}: {_few(extra)}" for name, extra in only.items() if extra)
        raise DataError(
            f"{parts[0]} and {parts[1].name} must have the same class folders, got {found}.",
            hint="the class folders, in alphabetical order, are the classes of the network.",
        )
    return classes, _files(parts[0], classes), _files(parts[1], classes)


def random_part(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Choose a random part of an image: left, top, right, bottom.

    Its area is from 8 % to 100 % of the image, its width from 3/4 to 4/3 of its height. If none fits in ten tries, it
    is the largest middle part of a shape within those bounds.
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


@final
@dataclass(frozen=True)
class Resizing:
    """How image files become images of one height and width."""

    sides: tuple[int, int]
    crop_share: float = CROP_SHARE
    interpolation: str = "bilinear"

    def filter(self, pil: Any) -> Any:
        """Return what Pillow calls the interpolation."""
        return pil.Resampling[self.interpolation.upper()]

    def in_words(self, sizes: Sequence[tuple[int, int]], augmented: bool) -> str:
        """Say what happens to files of these sizes, height and width each."""
        shown = [f"{tall}×{wide}" for tall, wide in sizes]
        files = f"files of {shown[0]}" + (f" to {shown[-1]}" if len(shown) > 1 else "")
        if list(sizes) == [self.sides]:
            test = "as they are"
        else:
            large = "×".join(str(round(side / self.crop_share)) for side in self.sides)
            test = f"resized ({self.interpolation}) to fill {large}, the middle {self.sides[0]}×{self.sides[1]} cut out"
        return f"{files} {test}" + ("; for training, random parts of them, mirrored half of the time" * augmented)


def random_resized_crop(image: Any, to: Resizing, rng: np.random.Generator) -> Any:
    """Resize a random part of a Pillow image to a height and width; mirror it half of the time."""
    pil = require("PIL.Image", "pillow", "to decode image files")
    width, height = image.size
    part = image.crop(random_part(width, height, rng)).resize(to.sides[::-1], to.filter(pil))
    return part.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if rng.integers(2) else part


def resized_middle(image: Any, to: Resizing) -> Any:
    """Resize a Pillow image so that a share of it, in one direction, is the wanted size, and cut out the middle.

    An image that has that size already stays as it is: a network that was trained on it has seen all of it.
    """
    pil = require("PIL.Image", "pillow", "to decode image files")
    (tall, wide), (width, height) = to.sides, image.size
    if (width, height) == (wide, tall):
        return image
    least_wide, least_tall = round(wide / to.crop_share), round(tall / to.crop_share)
    if width * tall <= height * wide:  # narrower than what is wanted
        scaled = (least_wide, int(least_wide * height / width))
    else:
        scaled = (int(least_tall * width / height), least_tall)
    left, top = round((scaled[0] - wide) / 2), round((scaled[1] - tall) / 2)
    return image.resize(scaled, to.filter(pil)).crop((left, top, left + wide, top + tall))


def sizes_of(files: Files) -> list[tuple[int, int]]:
    """Return the heights and widths of some of the files, in order and without duplicates; only headers are read."""
    pil = require("PIL.Image", "pillow", "to decode image files")
    found = set()
    for path in files.paths[:: -(-len(files.paths) // LOOKED_AT)]:
        with (
            suppress(Exception),
            pil.open(path, formats=FORMATS) as image,
        ):  # damaged files are named when they are read
            found.add((image.height, image.width))
    return sorted(found) or [(0, 0)]


def own_size(path: Path) -> tuple[int, int] | None:
    """Return the size of a folder's images, if all that are looked at have one and it is small."""
    sizes = sizes_of(scan(path)[1])
    return sizes[0] if len(sizes) == 1 and 0 < max(sizes[0]) <= LARGEST_OWN else None


@final
class DecodedFiles(Dataset[Item | Depl0Error]):
    """Decodes one file when asked for its epoch and number; with a seed, a random part of it."""

    def __init__(self, files: Files, to: Resizing, seed: int | None) -> None:
        self._files = files
        self._to = to
        self._seed = seed

    def __getitem__(self, place: Place) -> Item | Depl0Error:
        """Decode one image. An error is given back, not raised: workers would wrap it in a traceback."""
        epoch, number = place
        path = self._files.paths[number]
        try:
            image = _decode(path)
            if self._seed is None:
                image = resized_middle(image, self._to)
            else:
                image = random_resized_crop(image, self._to, random_stream(self._seed, RESIZED_CROP, epoch, number))
        except DataError as error:
            return error
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels, self._files.labels[number]


def _decode(path: str) -> Any:
    pil = require("PIL.Image", "pillow", "to decode image files")
    try:
        with pil.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width:,} × {image.height:,} pixels"
                raise DataError(
                    f"{path} has {size}, more than the {MAX_PIXELS:,} that are read.", hint="scale it down."
                )
            return image.convert("RGB")
    except (DataError, MemoryError):
        raise
    except pil.UnidentifiedImageError as error:
        raise _not_an_image(path) from error
    except Exception as error:  # what Pillow runs into in a damaged file is not documented: OSError, struct.error, …
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be decoded as an image: {reason}.", hint="replace it, or take it out of the folder."
        ) from error


def _not_an_image(path: str) -> DataError:
    """Say what a file holds instead of a raster image, where its first bytes tell."""
    with open(path, "rb") as file:
        start = file.read(512)
    found = next((name for name, marks in OTHERS.items() if any(start.startswith(mark) for mark in marks)), None)
    if found is None and start[4:8] == b"ftyp":
        found = "HEIF or AVIF"
    held = f"it holds {found}, which is not read" if found else "it holds none of the formats that are read"
    instead = f"convert it to one of {', '.join(FORMATS)}" if found else "replace it"
    return DataError(f"{path} cannot be decoded as an image: {held}.", hint=f"{instead}, or take it out of the folder.")


def _classes(part: Path) -> tuple[str, ...]:
    with os.scandir(part) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{part} must have one folder for each class, but has none.")
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
            raise DataError(
                f"{part / name} must have at least one image, but has none.",
                hint=f"image files end in {', '.join(ENDINGS)}.",
            )
        paths += sorted(found)
        labels += [label] * len(found)
    return Files(tuple(paths), tuple(labels))


def _both(
    parts: Sequence[Path], train: tuple[str, ...], test: tuple[str, ...]
) -> Iterator[tuple[Path, tuple[str, ...], tuple[str, ...]]]:
    yield parts[0], train, test
    yield parts[1], test, train


def _few(names: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
