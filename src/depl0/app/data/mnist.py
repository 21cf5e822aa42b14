"""``mnist:DIR`` and ``fashion-mnist:DIR``: four idx files, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from depl0.app.data.base import Data, Target
from depl0.app.data.memory import Arrays, Part, check_labels, open_arrays
from depl0.app.data.registry import register
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError

IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801
SIDE = 28
MAX_ITEMS = 1_000_000
PIECE = 1 << 24
AGAIN = "it is damaged or an incomplete copy: fetch it again."


@register("mnist")
def open_mnist(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open MNIST, from DIR or one of the sub-folders that other programs make."""
    folder = _find(path, ("mnist", "MNIST/raw", "MNIST"))
    arrays = Arrays(
        name="mnist",
        train=_read_part(folder, "train"),
        test=_read_part(folder, "t10k"),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        mean=(0.1307,),
        std=(0.3081,),
        augment="none",  # a mirrored digit is no digit
    )
    return open_arrays(arrays, settings, target)


@register("fashion-mnist")
def open_fashion_mnist(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open Fashion-MNIST, from DIR or one of the sub-folders that other programs make."""
    folder = _find(path, ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"))
    garments = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag"
    arrays = Arrays(
        name="fashion-mnist",
        train=_read_part(folder, "train"),
        test=_read_part(folder, "t10k"),
        num_classes=10,
        class_names=(*garments.split(), "Ankle boot"),
        mean=(0.2860,),
        std=(0.3530,),
        augment="crop-flip",
    )
    return open_arrays(arrays, settings, target)


def read_idx(path: Path, magic: int, item_shape: tuple[int, ...] = ()) -> Tensor:
    """Read an idx file of bytes, after checking that its header is the expected one and its length the header's."""
    header_size = 8 + 4 * len(item_shape)
    try:
        with _open(path) as file:
            header = file.read(header_size)
            if len(header) < header_size:
                raise DataError(f"{path} ends within its header of {header_size} bytes.", hint=AGAIN)
            found, count, *sizes = (int(number) for number in np.frombuffer(header, dtype=">u4"))
            if found != magic:
                raise DataError(
                    f"{path} must begin with the idx magic number 0x{magic:08x}, got 0x{found:08x} instead.",
                    hint="it is another kind of file, or images and labels have been swapped.",
                )
            if tuple(sizes) != item_shape:
                raise DataError(
                    f"{path} must hold images of {SIDE}x{SIDE} pixels, got {'x'.join(map(str, sizes))} instead."
                )
            if not 0 < count <= MAX_ITEMS:
                raise DataError(f"{path} must hold from 1 to {MAX_ITEMS:,} items, its header says {count:,} instead.")
            size = count * int(np.prod(item_shape, dtype=np.int64))
            values = _read_up_to(file, size + 1)  # one more, to notice a longer file without reading all of it
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be decompressed: {error}.", hint=AGAIN) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(values) != size:
        length = f"only {len(values):,}" if len(values) < size else "more"
        raise DataError(
            f"{path} must have {size:,} bytes after its header, for {count:,} items, got {length} instead.", hint=AGAIN
        )
    return torch.frombuffer(values, dtype=torch.uint8).view(count, *item_shape)


def _read_up_to(file: IO[bytes], size: int) -> bytearray:
    """Read in pieces, so that a header that promises much takes no more memory than there is content."""
    values = bytearray()
    while len(values) < size and (piece := file.read(min(size - len(values), PIECE))):
        values += piece
    return values


def _read_part(folder: Path, part: str) -> Part:
    images_path, labels_path = _file(folder, f"{part}-images", 3), _file(folder, f"{part}-labels", 1)
    images = read_idx(images_path, IMAGES_MAGIC, (SIDE, SIDE)).unsqueeze(1)
    labels = read_idx(labels_path, LABELS_MAGIC).to(torch.int64)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images):,} images but {labels_path.name} holds {len(labels):,} labels.",
            hint="take both files from the same data set.",
        )
    check_labels(labels, 10, f"the labels in {labels_path}", hint=AGAIN)
    return images, labels


def _find(path: Path, sub_folders: tuple[str, ...]) -> Path:
    """Find the folder with the files: the given one, or one in it."""
    for folder in (path, *(path / sub for sub in sub_folders)):
        if any(file.exists() for file in _candidates(folder, "train-images", 3)):
            return folder
    return path  # the error names the file that is missing there


def _candidates(folder: Path, stem: str, dimensions: int) -> list[Path]:
    plain = [f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte"]
    return [folder / (name + ending) for name in plain for ending in ("", ".gz")]


def _file(folder: Path, stem: str, dimensions: int) -> Path:
    candidates = _candidates(folder, stem, dimensions)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder with idx files, but there is no such folder.")
    raise DataError(
        f"{candidates[1].name} (or {candidates[0].name}) is missing in {folder}.",
        hint="the folder needs the images and labels of both 'train' and 't10k': four files.",
    )


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
