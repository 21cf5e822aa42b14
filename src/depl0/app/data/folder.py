"""``folder:DIR``: image files in one folder per class, below ``train`` and ``val`` (or ``test``), like ImageNet.

torchvision finds the files and transforms the images. Training takes a random part of each image, testing the centre.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from depl0._util.optional import require, torchvision
from depl0.app.data.base import Data, Target
from depl0.app.data.examples import open_datasets
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError, InputError

IMAGE_SIZE = 224
CROP_SHARE = 224 / 256  # of the shorter side, for the centre crop
LARGEST_OWN = 256
"""largest longer side of files that keep their size"""
INSPECTED = 64
"""number of files whose size is read"""
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""Pillow supports other formats that are programs, and runs an interpreter to draw them."""
MAX_PIXELS = 64_000_000
"""pixels of one image: half a gigabyte while it is decoded"""


def open_folder(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open a folder of class folders."""
    if settings.augment not in ("default", "imagenet", "none"):
        raise InputError(f"data.augment must be imagenet or none for folder:, got {settings.augment!r} instead.")
    centre = Preparation(
        settings.sides or (IMAGE_SIZE, IMAGE_SIZE),
        settings.crop_share or CROP_SHARE,
        settings.interpolation or "bilinear",
    )
    plain, test = image_folders(path, centre)
    train = plain if settings.augment == "none" else image_folders(path, centre.randomised())[0]
    return open_datasets("folder", train, test, settings, target, plain)


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


def own_size(path: Path) -> tuple[int, int] | None:
    """Return the height and width of a folder's images if all inspected images have the same small size."""
    files, found = [file for file, _ in image_folders(path)[0].samples], set()
    for file in files[:: -(-len(files) // INSPECTED)]:
        with suppress(Exception), _pillow().open(file, formats=FORMATS) as image:  # damaged ones are named when decoded
            found.add((image.height, image.width))
    size = found.pop() if len(found) == 1 else (0, 0)
    return size if 0 < max(size) <= LARGEST_OWN else None


@final
@dataclass(frozen=True)
class Preparation:
    """Turns Pillow images into uint8 tensors of one size: their centre, or what ``random`` makes of them."""

    sides: tuple[int, int]
    crop_share: float = CROP_SHARE
    interpolation: str = "bilinear"
    random: Any = None

    def randomised(self) -> Preparation:
        """Return the preparation that takes a random part of an image, and mirrors it half of the time."""
        transforms = torchvision().transforms
        crop = transforms.RandomResizedCrop(self.sides, interpolation=transforms.InterpolationMode(self.interpolation))
        random = transforms.Compose([crop, transforms.RandomHorizontalFlip()])
        return Preparation(self.sides, self.crop_share, self.interpolation, random)

    def __call__(self, image: Any) -> Tensor:
        """Return the image as a tensor."""
        prepared = self.centre(image) if self.random is None else self.random(image)
        tensor: Tensor = torchvision().transforms.functional.pil_to_tensor(prepared)
        return tensor

    def centre(self, image: Any) -> Any:
        """Return the centre of a resized Pillow image; an image of the wanted size is unchanged."""
        (tall, wide), (width, height) = self.sides, image.size
        if (width, height) == (wide, tall):
            return image
        least_wide, least_tall = round(wide / self.crop_share), round(tall / self.crop_share)
        if width * tall <= height * wide:  # narrower than the wanted shape
            scaled = (least_wide, int(least_wide * height / width))
        else:
            scaled = (int(least_tall * width / height), least_tall)
        resized = image.resize(scaled, _pillow().Resampling[self.interpolation.upper()])
        return torchvision().transforms.functional.center_crop(resized, list(self.sides))


def decode(path: str) -> Any:
    """Return a file as a Pillow image with three channels."""
    try:
        with _pillow().open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"it has {image.width:,} × {image.height:,} pixels, more than {MAX_PIXELS:,}")
            return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # the errors of Pillow in a damaged file are not documented: OSError, struct.error, …
        raise DataError(
            f"{path} cannot be decoded as an image: {error}.",
            hint=f"replace it by one of {', '.join(FORMATS)}, or take it out of the folder.",
        ) from error


def _pillow() -> Any:
    return require("PIL.Image", "pillow", "to decode image files")
