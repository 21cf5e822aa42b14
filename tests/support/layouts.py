"""Small data sets in every layout, for tests."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image

from depl0.app.data.readers import CIFAR10, Cifar


def write_cifar(folder: Path, layout: Cifar, records: int = 20, seed: int = 0) -> Path:
    """Write each file of a CIFAR layout with so many records, into the standard folder below ``folder``."""
    rng = np.random.default_rng(seed)
    target = folder / layout.folder
    target.mkdir(parents=True)
    for file in (*layout.train, layout.test):
        values = rng.integers(0, 256, (records, layout.record), dtype=np.uint8)
        values[:, layout.label_bytes - 1] = np.arange(records) % layout.num_classes
        values.tofile(target / file)
    return target


def write_cifar10(folder: Path, records: int = 20) -> Path:
    return write_cifar(folder, CIFAR10, records)


def idx_bytes(values: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + values.ndim}I", 0x00000800 + values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, name: str = "MNIST", train: int = 30, test: int = 10) -> Path:
    """Write the four idx files of MNIST or Fashion-MNIST as torchvision keeps them."""
    rng = np.random.default_rng(0)
    raw = folder / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, values in (("images", images), ("labels", np.arange(count) % 10)):
            (raw / f"{part}-{kind}-idx{values.ndim}-ubyte").write_bytes(idx_bytes(values))
    return folder


def write_folder(folder: Path, classes: tuple[str, ...] = ("ant", "bee"), train: int = 5, test: int = 3) -> Path:
    """Write class folders of images that differ in size, mode and format."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("val", test)):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                size = tuple(rng.integers(20, 60, 2)) + ((3,) if number % 2 else ())
                image = Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8))
                image.save(folder / part / name / f"{number}.{'JPEG' if number % 2 else 'png'}")
    return folder
