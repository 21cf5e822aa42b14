"""Broken data and weights from strangers: images of every format, archives, safetensors."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import struct
import tarfile
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image
from safetensors.torch import save as write_safetensors

from depl0.app.data.archive import unpack
from depl0.app.data.folder import FORMATS, DecodedFiles, Files, Resizing
from depl0.app.weights import load_weights
from depl0.errors import DataError, InputError
from tests.networks.tiny import TinyNet
from tests.support.bounds import bounded
from tests.support.hostile_values import PLANNED, cases, damaged_bytes, damaged_tree, only, seeds

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.usefixtures("remembered_plans"),
    pytest.mark.filterwarnings("ignore:::PIL"),  # Pillow warns of what is broken here on purpose
]

# -- images ----------------------------------------------------------------------------------------------------------

WAYS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "JPEG": [("RGB", {}), ("L", {}), ("CMYK", {}), ("RGB", {"progressive": True})],
    "PNG": [("RGB", {}), ("P", {}), ("LA", {}), ("RGBA", {}), ("1", {}), ("I;16", {})],
    "PPM": [("RGB", {}), ("L", {}), ("1", {})],
    "BMP": [("RGB", {}), ("P", {}), ("1", {})],
    "GIF": [("P", {}), ("L", {})],
    "TIFF": [("RGB", {}), ("P", {}), ("CMYK", {}), ("RGB", {"compression": "tiff_lzw"}), ("L", {"compression": "jpeg"}),
             ("1", {"compression": "group4"}), ("RGB", {"compression": "tiff_adobe_deflate"})],
    "WEBP": [("RGB", {}), ("RGBA", {"lossless": True})],
}  # fmt: skip
"""how images of each format are written: mode and options"""


def picture(form: str, place: int) -> bytes:
    mode, options = WAYS[form][place % len(WAYS[form])]
    pixels = np.random.default_rng(place).integers(0, 256, (13, 17, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return file.getvalue()


def test_all_formats_are_tried() -> None:
    assert set(WAYS) == set(FORMATS)


@pytest.mark.parametrize("form", FORMATS)
@cases(60, times=len(FORMATS))
@given(rng=seeds)
def test_damaged_images(tmp_path: Path, form: str, rng: Random) -> None:
    path = tmp_path / f"image.{form.lower()}"
    path.write_bytes(damaged_bytes(rng, picture(form, rng.randrange(7))))
    with bounded():
        for seed in (None, 0):
            found = DecodedFiles(Files((str(path),), (1,)), Resizing((8, 8)), seed)[0, 0]
            if isinstance(found, DataError):
                assert str(path) in str(found)
            else:
                assert isinstance(found, tuple) and found[0].shape == (3, 8, 8) and found[1] == 1


def header_of(form: str, width: int, height: int) -> bytes:
    """An image that claims to be large, in a few bytes."""
    if form == "PNG":
        chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    if form == "BMP":
        return b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"P6\n%d %d\n255\n" % (width, height)


@pytest.mark.parametrize("form", ["PNG", "BMP", "PPM"])
@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (13_000, 13_000), (60_000, 60_000), (2**31 - 1, 1)])
def test_images_that_claim_to_be_large_take_no_memory(tmp_path: Path, form: str, width: int, height: int) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(header_of(form, width, height))
    with bounded(memory=100_000_000):
        found = DecodedFiles(Files((str(path),), (0,)), 8, None)[0, 0]
    assert isinstance(found, DataError), found


# -- archives --------------------------------------------------------------------------------------------------------


def good_tar(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name in ("data/a.bin", "data/" + "n" * 120, "data/sub/ü.bin"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 700, 1.5
            tar.addfile(info, io.BytesIO(bytes(range(256)) * 3))
    return file.getvalue()


TARS = [good_tar(form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]


def with_checksums(content: bytes) -> bytes:
    """Put right the checksum of every block that looks like a header, as a stranger would."""
    data = bytearray(content)
    for start in range(0, len(data) - 511, 512):
        if data[start + 257 : start + 262] == b"ustar":
            data[start + 148 : start + 156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    return bytes(data)


@cases(300)
@given(rng=seeds)
def test_damaged_archives(tmp_path: Path, rng: Random) -> None:
    tar = rng.choice(TARS)
    if rng.random() < 0.3:
        content = damaged_bytes(rng, gzip.compress(tar, mtime=0))
    else:
        broken = damaged_bytes(rng, tar) if rng.random() < 0.3 else flipped_headers(rng, tar)
        content = gzip.compress(with_checksums(broken), compresslevel=1, mtime=0)
    folder = tmp_path / "here"
    folder.mkdir(exist_ok=True)
    (folder / "a.tar.gz").write_bytes(content)
    with bounded(), only(DataError):
        unpack(folder / "a.tar.gz", "data", max_bytes=1_000_000)
    shutil.rmtree(folder / "data", ignore_errors=True)
    assert [path.name for path in folder.iterdir()] == ["a.tar.gz"] and [path.name for path in tmp_path.iterdir()] == [
        "here"
    ]


def flipped_headers(rng: Random, tar: bytes) -> bytes:
    """Change bytes of headers alone, where each of them means something."""
    data = bytearray(tar)
    headers = [start for start in range(0, len(data) - 511, 512) if data[start + 257 : start + 262] == b"ustar"]
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(headers) + rng.choice([rng.randrange(512), 156, rng.randrange(124, 136)])
        data[place] = rng.choice([0, 0x80, 0xFF, rng.randrange(256), *b"01234567xgLKSD"])
    return bytes(data)


# -- weights ---------------------------------------------------------------------------------------------------------

WEIGHTS = write_safetensors(TinyNet().state_dict())


@cases(250)
@given(rng=seeds)
def test_damaged_weights(tmp_path: Path, rng: Random) -> None:
    path = tmp_path / "weights.safetensors"
    if rng.random() < 0.5:
        path.write_bytes(damaged_bytes(rng, WEIGHTS))
    else:
        length = int.from_bytes(WEIGHTS[:8], "little")
        header = json.dumps(damaged_tree(rng, json.loads(WEIGHTS[8 : 8 + length]))).encode()
        claimed = len(header) if rng.random() < 0.8 else rng.randrange(2**64)
        path.write_bytes(claimed.to_bytes(8, "little") + header + WEIGHTS[8 + length :])
    model = TinyNet()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    with bounded(), only(InputError):
        load_weights(model, path)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    assert all(isinstance(tensor, torch.Tensor) for tensor in model.state_dict().values())


def test_make_fuzz_tries_more_than_20000_cases() -> None:
    """The tests say how many cases they have; the Makefile says how many times as many it wants."""
    from tests.faults import test_fuzz, test_fuzz_reports  # noqa: F401 - they plan when they are imported

    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (factor,) = re.findall(r"DEPL0_FUZZ=(\d+) ", makefile)
    assert int(factor) * sum(PLANNED) > 40_000
