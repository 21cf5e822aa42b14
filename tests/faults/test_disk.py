"""A full disk, and a folder that is read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from depl0.app.runs.checkpoint import load_newest, save_checkpoint
from depl0.errors import InputError, TrainingError
from tests.networks.tiny import Noisy, interrupt, run, tiny_recipe
from tests.support import tasks
from tests.support.resume import what_matters

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB, where the tests may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path, leave: int) -> None:
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filler").write_bytes(bytes(max(free - leave, 0)))


@pytest.mark.parametrize("leave", [0, 8192])
def test_a_full_disk_keeps_the_checkpoints_that_were_there(small_disk: Path, leave: int) -> None:
    folder = small_disk / "checkpoints"
    save_checkpoint(folder, 1, tasks.state(1), keep=2)
    fill(small_disk, leave)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(folder, 2, {"large": "x" * 40_000}, keep=2)
    assert tasks.number_of(folder) == 1
    (small_disk / "filler").unlink()
    save_checkpoint(folder, 3, tasks.state(3), keep=2)
    assert tasks.number_of(folder) == 3
    assert not list(folder.glob(".*"))


def test_a_run_on_a_full_disk_stops_with_a_hint_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    fields = {"run__checkpoint_minutes": 0, "run__trackers": ["tensorboard"], "search__epochs": 2}
    recipe, out = tiny_recipe(**fields), small_disk / "run"
    with pytest.raises(TrainingError, match="cannot be written to: No space left on device") as caught:
        run(recipe, out, Noisy(at_step=5, act=lambda: fill(small_disk, 0)))
    assert "--resume" in str(caught.value)
    found = load_newest(out / "checkpoints")
    assert found is not None and found[0] == 3
    (small_disk / "filler").unlink()
    reporter = Noisy()
    run(recipe, out, reporter, resume=True)
    assert "resumed from step 3" in reporter.notes
    run(recipe, tmp_path / "whole")
    assert what_matters(out) == what_matters(tmp_path / "whole")


def test_a_read_only_folder_is_refused_before_any_training(small_disk: Path) -> None:
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    reporter = Noisy()
    with pytest.raises(InputError, match="cannot be written to: Read-only file system") as caught:
        run(tiny_recipe(), small_disk / "run", reporter)
    assert "choose another --out" in str(caught.value)
    assert reporter.steps == 0


def test_how_a_run_is_looked_after_may_change_when_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(TrainingError):
        run(tiny_recipe(), out, Noisy(at_step=2, act=interrupt))
    reporter = Noisy()
    free = {"run__keep_checkpoints": 5, "run__checkpoint_steps": 3}
    run(tiny_recipe(**free), out, reporter, resume=True)
    assert "resumed from step 2" in reporter.notes
