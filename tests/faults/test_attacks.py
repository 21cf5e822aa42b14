"""Hostile files are refused in words, within 5 seconds and 1 GB, run no code and leave nothing behind."""

from __future__ import annotations

import io
import json
import os
import pickle  # noqa: TID251 - a weapon
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from depl0.app.data import open_data
from depl0.errors import DataError, Depl0Error
from tests.support.bounds import bounded
from tests.support.layouts import write_cifar10
from tests.support.readers import GOLDEN, READERS, prepared

pytestmark = pytest.mark.fuzz

OLD = (1980, 1, 1, 0, 0, 0)
"""the time of everything in an archive"""


class RunsCode:
    """Is ``print("it ran")`` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, OLD), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def safetensors(header: dict[str, Any] | bytes, values: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + values


def golden(**changes: Any) -> bytes:
    """The header of a good compact network with other entries."""
    return json.dumps({**json.loads((GOLDEN / "compact.json").read_bytes()), **changes}).encode()


def not_numbers() -> bytes:
    """The values of a good compact network, the first of which is none."""
    content = bytearray((GOLDEN / "compact.safetensors").read_bytes())
    content[-4:] = struct.pack("<f", float("nan"))
    return bytes(content)


def checkpoint(tree: bytes) -> bytes:
    """A checkpoint with this tree of values, and no other tensors."""
    return safetensors({"tree": {"dtype": "U8", "shape": [len(tree)], "data_offsets": [0, len(tree)]}}, tree)


def deep(opening: str, levels: int = 20_000) -> bytes:
    return (opening * levels).encode()


PICKLE = pickle.dumps(RunsCode(), protocol=2)
MISSING = b'{"version": 2, "state": {"dict": [["w", {"tensor": "0"}]]}}'

ATTACKS: dict[str, tuple[str, bytes]] = {
    "compact.json/deep-lists": ("20,000 lists in each other: the parser's stack", deep("[")),
    "compact.json/deep-objects": ("5,000 objects in each other", deep('{"a":', 5000)),
    "compact.json/long-number": ("a number of 5,000 digits, which takes quadratic time to read", b"1" * 5000),
    "compact.json/long-version": ("the same as the format's version", golden(version=10**4200)),
    "compact.json/no-text": ("bytes that are no UTF-8", b"\xff\xfe{}"),
    "compact.json/huge-shape": ("a tensor of 2^62 numbers", golden(dense_shapes={"stem.weight": [2**31, 2**31]})),
    "compact.json/negative-position": ("a kept channel before the first", golden(keep={"stem.weight": {"0": [-1]}})),
    "compact.json/many-channels": ("a layer of 2^60 channels", golden(numbers={"stem": {"0": 2**60}})),
    "compact.json/strange-module": ("a module that is no part of depl0", golden(replaced={"stem": {"kind": "os"}})),
    "compact.safetensors/long-header": ("a header of 2^63 bytes", safetensors({}, length=2**63)),
    "compact.safetensors/deep-header": ("a header of 20,000 lists in each other", safetensors(deep("["))),
    "compact.safetensors/nan": ("a weight that is no number", not_numbers()),
    "compact.safetensors/pickle": ("code, in a pickle", PICKLE),
    "checkpoint.safetensors/deep-lists": ("20,000 lists in each other", checkpoint(deep("["))),
    "checkpoint.safetensors/unknown-entry": ("no known kind", checkpoint(b'{"version": 2, "state": {"code": "x"}}')),
    "checkpoint.safetensors/no-tensor": ("a tensor that is not there", checkpoint(MISSING)),
    "checkpoint.safetensors/long-header": ("a header of 2^40 bytes", safetensors({}, length=2**40)),
    "checkpoint.safetensors/pickle": ("code, in a pickle", PICKLE),
    "weights.safetensors/long-header": ("a header of 2^62 bytes", safetensors({}, length=2**62)),
    "weights.safetensors/huge-tensor": (
        "a tensor of 2^62 bytes in a file of 100",
        safetensors({"conv1.weight": {"dtype": "U8", "shape": [2**62], "data_offsets": [0, 2**62]}}, b"xx"),
    ),
    "weights.safetensors/overlap": (
        "two tensors in the same place",
        safetensors({n: {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} for n in ("a", "b")}, b"xx"),
    ),
    "weights.pt/bomb": ("30 MB of zeros in 30 kB", zipped({"a/data.pkl": PICKLE, "a/data/0": bytes(30_000_000)})),
    "weights.pt/zip-with-code": ("code, in an archive", zipped({"a/data.pkl": PICKLE, "a/version": b"3"})),
    "weights.pt/bare-pickle": ("code, in a bare pickle", PICKLE),
    "weights.pt/long-string": ("a string of 2^62 bytes", b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x."),
    "recipe.toml/deep-lists": ("20,000 lists in each other", b"a = " + deep("[")),
    "recipe.toml/deep-keys": ("a key of 5,000 parts", b".".join([b"a"] * 5000) + b" = 1\n"),
    "recipe.toml/long-number": ("a number of 5,000 digits", b"a = " + b"1" * 5000),
    "recipe.toml/path-as-name": ("a name that is a path", b'name = "../../outside"\n'),
    "recipe.toml/nan": ("a learning rate that is no number", b"[weight_optimizer]\nlr = nan\n"),
    "recipe.toml/null": ("a null character in a name", b'name = "a\\u0000b"\n'),
    "metrics.jsonl/deep-lists": ("20,000 lists in each other, in a first line", deep("[") + b"\n{}\n"),
    "metrics.jsonl/no-object": ("a line that is no object", b"3\n{}\n"),
    "gates.jsonl/no-object": ("a first line that is no object", b"3\n{}\n"),
    "summary.json/deep-objects": ("5,000 objects in each other", deep('{"a":', 5000)),
    "environment.json/deep-lists": ("20,000 lists in each other", deep("[")),
    "study.json/deep-lists": ("20,000 lists in each other", deep("[")),
    "study.json/no-recipe": (
        "a member whose recipe is a list",
        b'{"version": 1, "kind": "a", "members": [{"name": "a", "recipe": []}]}',
    ),
}  # fmt: skip
"""what each file attacks, and its content, by the name of the file that a reader takes it for"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPL0_CACHE", str(tmp_path / "cache"))


def refused(path: Path) -> str:
    """Return what a reader says of a file."""
    with bounded(), pytest.raises(Depl0Error) as caught:
        READERS[path.name](path)
    return str(caught.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = prepared(Path(name).parent.name, tmp_path / "here" / "files")
    path.write_bytes(ATTACKS[name][1])
    before = sorted(str(found) for found in tmp_path.rglob("*"))
    words = refused(path)
    assert len(words) < 2000 and "Traceback" not in words
    assert "it ran" not in capfd.readouterr().out
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before


def test_every_reader_is_attacked() -> None:
    assert {Path(name).parent.name for name in ATTACKS} == READERS.keys()


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
@pytest.mark.parametrize("name", sorted(READERS))
def test_what_is_no_file_or_pretends_to_be_huge_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    path = prepared(name, tmp_path / "files")
    if kind == "huge":
        os.truncate(path, 200_000_000_000)  # takes no room on the disk
        assert "200,000,000,000 bytes, more than" in refused(path) or name.startswith("weights")
        return
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert refused(path)


def test_huge_records_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    os.truncate(tmp_path / "cifar-10-batches-bin/test_batch.bin", 3073 * 50_000_000)
    with bounded(), pytest.raises(DataError, match="must have a multiple of 3,073 bytes, got 153,650,000,000"):
        open_data(f"cifar10:{tmp_path}")
