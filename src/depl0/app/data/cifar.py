"""``cifar10:DIR`` and ``cifar100:DIR`` in the standard binary layout, or as the downloaded ``.tar.gz``.

Each record is its labels, one byte each, followed by 3,072 bytes of a 3x32x32 image. No pickle is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from depl0._util.io import MAX_TEXT, read_bounded
from depl0.app.data.archive import unpack
from depl0.app.data.base import Data, Target
from depl0.app.data.memory import Arrays, Part, check_labels, open_arrays
from depl0.app.data.registry import register
from depl0.app.data.settings import DataSettings
from depl0.errors import DataError

PIXELS = 3 * 32 * 32


@final
@dataclass(frozen=True)
class Layout:
    """Which files a data set has, and what is in them."""

    name: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    standard_records: int
    """Records in each training file as published."""
    num_classes: int
    label_bytes: int
    """The last one is the label that is used."""
    pickled: tuple[str, ...]
    """What the other, pickled version is called."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files with records."""
        return (*self.train, self.test)

    @property
    def record(self) -> int:
        """Bytes of one record."""
        return self.label_bytes + PIXELS

    @property
    def get(self) -> str:
        """How to get the files."""
        return f"`depl0 recipes download {self.name} DIR` downloads them; then use {self.name}:DIR."


CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    standard_records=10_000,
    num_classes=10,
    label_bytes=1,
    pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1"),
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    train=("train.bin",),
    test="test.bin",
    standard_records=50_000,
    num_classes=100,
    label_bytes=2,  # coarse, fine
    pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@register("cifar10")
def open_cifar10(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open CIFAR-10 from its folder, the folder around it, or its archive."""
    train, test = _read(locate(path, CIFAR10), CIFAR10)
    arrays = Arrays(
        name="cifar10",
        train=train,
        test=test,
        num_classes=10,
        class_names=CIFAR10_CLASSES,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment="crop-flip",
    )
    return open_arrays(arrays, settings, target)


@register("cifar100")
def open_cifar100(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open CIFAR-100 with its 100 fine classes, from its folder, the folder around it, or its archive."""
    folder = locate(path, CIFAR100)
    train, test = _read(folder, CIFAR100)
    arrays = Arrays(
        name="cifar100",
        train=train,
        test=test,
        num_classes=100,
        class_names=_fine_names(folder / "fine_label_names.txt"),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment="crop-flip",
    )
    return open_arrays(arrays, settings, target)


def locate(path: Path, layout: Layout) -> Path:
    """Find the folder of the binary files, unpacking the archive if that is all there is."""
    if path.is_file() and path.name.endswith((".tar.gz", ".tgz")):
        unpacked = path.parent / layout.folder
        return unpacked if unpacked.is_dir() else unpack(path, layout.folder)
    if not path.is_dir():
        raise DataError(f"{path} must be the folder of {layout.name}, but there is no such folder.", hint=layout.get)
    for folder in (path, path / layout.folder):
        if any((folder / file).exists() for file in layout.files):
            return folder
    if (path / layout.archive).is_file():
        return unpack(path / layout.archive, layout.folder)
    pickled = next((name for name in layout.pickled if (path / name).exists()), None)
    if pickled is not None:
        raise DataError(
            f"{path} has the pickled version of {layout.name} ({pickled}); only the binary one is read, since a "
            "pickle can run any code.",
            hint=layout.get,
        )
    raise DataError(
        f"{path} must have the folder {layout.folder}, its files, or {layout.archive}, but has none of them.",
        hint=layout.get,
    )


def _read(folder: Path, layout: Layout) -> tuple[Part, Part]:
    missing = [file for file in layout.files if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}.", hint=layout.get)
    counts = [_count_records(folder / file, layout) for file in layout.train]
    for file, count in zip(layout.train, counts, strict=True):
        if count != max(counts):
            raise DataError(
                f"{folder / file} has {count:,} records but another training file has {max(counts):,}; all must have "
                "the same number.",
                hint=f"it is an incomplete copy: delete it. {layout.get}",
            )
    _count_records(folder / layout.test, layout)
    return _read_files(folder, layout.train, layout), _read_files(folder, (layout.test,), layout)


def _count_records(path: Path, layout: Layout) -> int:
    size = path.stat().st_size
    standard = 10_000 if path.name == layout.test else layout.standard_records
    if size == 0 or size % layout.record or size > standard * layout.record:
        raise DataError(
            f"{path} must have {standard * layout.record:,} bytes ({standard:,} records of {layout.record:,}), or a "
            f"smaller whole number of records, got {size:,} bytes instead.",
            hint=f"it is damaged or an incomplete copy: delete it. {layout.get}",
        )
    return size // layout.record


def _read_files(folder: Path, files: tuple[str, ...], layout: Layout) -> Part:
    images, labels = [], []
    for file in files:
        try:
            records = np.fromfile(folder / file, dtype=np.uint8).reshape(-1, layout.record)
        except OSError as error:
            raise DataError(f"{folder / file} cannot be read: {error.strerror or error}.") from error
        label = torch.from_numpy(records[:, layout.label_bytes - 1].astype(np.int64))
        check_labels(label, layout.num_classes, f"the labels in {folder / file}", hint=f"it is damaged. {layout.get}")
        labels.append(label)
        images.append(records[:, layout.label_bytes :])
    pixels = torch.from_numpy(np.concatenate(images)).view(-1, 3, 32, 32)
    return pixels, torch.cat(labels)


def _fine_names(path: Path) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    names = tuple(read_bounded(path, MAX_TEXT).decode(errors="replace").split())
    return names if len(names) == CIFAR100.num_classes else None
