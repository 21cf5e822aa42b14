"""Broken data and weights from strangers: images of every format, safetensors."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image
from safetensors.torch import save as write_safetensors

from depl0.app.data.folder import FORMATS, Files, Resizing
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
            found = Files((str(path),), (1,), Resizing((8, 8)), seed)[0, 0]
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
        found = Files((str(path),), (0,), Resizing((8, 8)))[0, 0]
    assert isinstance(found, DataError), found


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
