"""Files that pretend to be huge are refused in bounded time and memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import depl0
from depl0.app.data import open_data
from depl0.app.reports.run import read_run
from depl0.errors import DataError, Depl0Error
from tests.networks.tiny import TinyNet, tiny_gated
from tests.support.bounds import bounded
from tests.support.layouts import write_cifar10
from tests.support.runs import write_run

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("remembered_plans")]

HUGE = 200_000_000_000


def make_huge(path: Path) -> None:
    """Make a file that pretends to be larger than any memory; it takes no room on the disk."""
    os.truncate(path, HUGE)


@pytest.mark.parametrize("name", ["recipe.toml", "metrics.jsonl", "summary.json"])
def test_huge_files_of_a_run_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    make_huge(folder / name)
    with bounded(), pytest.raises(Depl0Error, match=f"{name} cannot be read: it has 200,000,000,000 bytes, more than"):
        read_run(folder)


@pytest.mark.parametrize("name", ["compact.json", "compact.safetensors"])
def test_huge_compact_networks_are_refused(tmp_path: Path, name: str) -> None:
    depl0.save(tiny_gated().extract(), tmp_path)
    make_huge(tmp_path / name)
    with bounded(), pytest.raises(Depl0Error, match=f"{name} is not read: it has 200,000,000,000 bytes, more than"):
        depl0.load(tmp_path, TinyNet)


def test_huge_records_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    os.truncate(tmp_path / "cifar-10-batches-bin/test_batch.bin", 3073 * 50_000_000)
    with bounded(), pytest.raises(DataError, match="must have a multiple of 3,073 bytes, got 153,650,000,000"):
        open_data(f"cifar10:{tmp_path}")
