"""A file may need only so much memory, whatever it says about itself: the bounds in SECURITY.md."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.networks.golden import TinyDigits
from tests.networks.tiny import TinyNet
from tests.support.bounds import bounded
from tests.support.readers import GOLDEN, prepared

import depl0
from depl0.app.models.weights import load_weights
from depl0.errors import Depl0Error, FormatError, InputError

HUGE = 4 << 30


def sparse(path: Path, size: int, header: dict[str, Any] | None = None) -> None:
    """Write a file of this size that takes no space: a safetensors header and a hole."""
    text = json.dumps(header or {}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, size)


@pytest.mark.parametrize("shapes", [None, {"stem.weight": [1 << 31]}])
def test_the_values_of_a_pruned_model_are_bounded_by_the_network(shapes: Any, tmp_path: Path) -> None:
    """Not by what its own header says."""
    path = prepared("compact.safetensors", tmp_path / "files")
    sparse(path, HUGE, {"stem.weight": {"dtype": "F16", "shape": [1 << 31], "data_offsets": [0, 1 << 32]}})
    header = json.loads((GOLDEN / "compact.json").read_bytes())
    if shapes is not None:
        (path.parent / "compact.json").write_text(json.dumps({**header, "dense_shapes": shapes, "keep": {}}))
    with bounded(memory=200_000_000), pytest.raises(FormatError, match=r"has 4,294,967,296 bytes, more than the 16,"):
        depl0.load(path.parent, TinyDigits)


def test_the_list_of_tensors_is_bounded(tmp_path: Path) -> None:
    path = prepared("compact.safetensors", tmp_path / "files")
    path.write_bytes(struct.pack("<Q", 1 << 25) + b" " * 1000)
    with bounded(memory=200_000_000), pytest.raises(FormatError, match="its list of tensors has 33,554,432 bytes"):
        depl0.load(path.parent, TinyDigits)


@pytest.mark.parametrize("part", ["{}", "1"])
@pytest.mark.parametrize("field", ["dense_shapes", "proof"])
def test_the_largest_json_stays_within_the_bound(part: str, field: str, tmp_path: Path) -> None:
    path = prepared("compact.json", tmp_path / "files")
    header = json.loads(path.read_text())
    count = (depl0._util.io.MAX_JSON - len(json.dumps(header))) // (len(part) + 1) - 100
    many = "[" + ",".join([part] * count) + "]"
    header[field] = {"inputs": "HERE", "outputs": "HERE"} if field == "proof" else {"stem.weight": "HERE"}
    path.write_text(json.dumps(header).replace('"HERE"', many, 1).replace('"HERE"', "[]"))
    with bounded(), pytest.raises(Depl0Error):
        depl0.load(path.parent, TinyDigits)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_weights_are_bounded_by_the_network(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    sparse(path, HUGE)
    with bounded(memory=200_000_000), pytest.raises(InputError, match=r"has 4,294,967,296 bytes, more than the 26"):
        load_weights(TinyNet(), path)
