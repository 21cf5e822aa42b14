"""What fuzzing has found, tried again without the fuzzer: no reader breaks on a file of the corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depl0.errors import Depl0Error
from tests.fuzz.__main__ import HERE, ROOT, RUNS, SHARES
from tests.support.bounds import bounded
from tests.support.readers import READERS, prepared

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("name", SHARES)
def test_no_file_of_the_corpus_breaks_a_reader(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPL0_CACHE", str(tmp_path / "cache"))
    path, taken, refused = prepared(name, tmp_path / "files"), 0, 0
    contents = [path.read_bytes(), *(file.read_bytes() for file in sorted((HERE / "corpus" / name).iterdir()))]
    for content in contents:
        path.write_bytes(content)
        with bounded():
            try:
                READERS[name](path)
                taken += 1
            except Depl0Error as error:
                assert str(error)
                refused += 1
    assert taken > 0 and refused > 0, "the corpus shows one side alone"


def test_every_reader_is_fuzzed() -> None:
    assert READERS.keys() == SHARES.keys()
    assert sum(SHARES.values()) == 1000 and RUNS >= 1_000_000
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"-m tests\.fuzz$", makefile, re.MULTILINE) and "DEPL0_RUNS" not in makefile
    assert sum(file.stat().st_size for file in (HERE / "corpus").rglob("*") if file.is_file()) < 300_000
