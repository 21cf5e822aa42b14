"""Reports, tables and studies over damaged run folders: always words, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import given

from depl0.app.reports.report import as_text, write_report
from depl0.app.reports.run import read_runs
from depl0.errors import Depl0Error
from tests.support.bounds import bounded
from tests.support.hostile_values import cases, damaged_bytes, damaged_tree, only, seeds
from tests.support.runs import write_run

pytestmark = pytest.mark.fuzz

FILES = ["recipe.toml", "metrics.jsonl", "gates.jsonl", "environment.json", "summary.json"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "run", layers=2, gates=3, epochs=3)


def damaged_file(rng: Random, content: bytes, name: str) -> bytes:
    """Damage the bytes of a file, or what it says."""
    if rng.random() < 0.4 or name == "recipe.toml":
        return damaged_bytes(rng, content)
    if name.endswith(".json"):
        return json.dumps(damaged_tree(rng, json.loads(content))).encode()
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    lines[place] = json.dumps(damaged_tree(rng, json.loads(lines[place]))).encode() + b"\n"
    return b"".join(lines)


def copy_damaged(source: Path, target: Path, file: str, rng: Random) -> Path:
    for name in FILES:
        content = (source / name).read_bytes()
        (target / name).write_bytes(damaged_file(rng, content, name) if name == file else content)
    return target


@pytest.mark.parametrize("file", FILES)
@cases(120, times=len(FILES))
@given(rng=seeds)
def test_tables_and_texts_over_damaged_runs(source: Path, tmp_path: Path, file: str, rng: Random) -> None:
    folder = copy_damaged(source, tmp_path, file, rng)
    with bounded(), only(Depl0Error):
        runs = read_runs([folder])
        for kind in ("json", "md"):
            as_text(runs, kind)


@pytest.mark.parametrize("file", FILES)
@cases(2, times=len(FILES))
@given(rng=seeds)
def test_pages_over_damaged_runs(source: Path, tmp_path: Path, file: str, rng: Random) -> None:
    folder = copy_damaged(source, tmp_path, file, rng)
    with bounded(seconds=20), only(Depl0Error):
        write_report(read_runs([folder]), tmp_path / "report")
    shutil.rmtree(tmp_path / "report", ignore_errors=True)
