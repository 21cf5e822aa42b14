"""Every hostile file is refused in words, within limits of time and memory, and leaves nothing behind."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path

import pytest

from depl0.errors import Depl0Error
from tests.attacks.make import ATTACKS, HERE, page
from tests.support.bounds import bounded
from tests.support.readers import READERS, prepared

pytestmark = pytest.mark.fuzz


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
    path.write_bytes((HERE / name).read_bytes())
    (tmp_path / "here" / "secret").write_text("secret")
    before = sorted(str(found) for found in tmp_path.rglob("*"))
    words = refused(path)
    assert len(words) < 2000 and "Traceback" not in words
    assert "it ran" not in capfd.readouterr().out
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before
    assert not Path("/tmp/depl0-outside").exists()


def test_the_files_are_what_the_script_writes() -> None:
    assert (HERE / "README.md").read_text() == page()
    files = {str(path.relative_to(HERE)) for path in HERE.glob("*/*") if "__pycache__" not in path.parts}
    assert files == set(ATTACKS)
    for name, (_, content) in ATTACKS.items():
        assert unpacked((HERE / name).read_bytes()) == unpacked(content), name
    assert sum((HERE / name).stat().st_size for name in files) < 400_000


def unpacked(content: bytes) -> object:
    """What a file says, however its zlib compresses."""
    if content.startswith(b"PK"):
        return [(member.filename, member.CRC) for member in zipfile.ZipFile(io.BytesIO(content)).infolist()]
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def test_every_reader_is_attacked() -> None:
    assert {Path(name).parent.name for name in ATTACKS} == READERS.keys()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", sorted(READERS))
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    path = prepared(name, tmp_path / "files")
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert refused(path)
