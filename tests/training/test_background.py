"""Checkpoints that are written in the background: as they were, one at a time, and with their errors."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from depl0.app.runs import checkpoint
from depl0.app.runs.checkpoint import BackgroundSaver, Snapshot, load_newest, write_snapshot
from depl0.app.runs.folder import RunFolder
from depl0.app.runtime.processes import explain_failures
from depl0.errors import TrainingError


class SlowDisk:
    """Writes only when it is let, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.steps, self.most, self._now = threading.Event(), [], 0, 0  # type: ignore[var-annotated]
        monkeypatch.setattr(checkpoint, "write_snapshot", self.write)

    def write(self, folder: Path, snapshot: Snapshot, keep: int) -> Path:
        self._now += 1
        self.most = max(self.most, self._now)
        assert self.go_on.wait(300)
        time.sleep(0.02)
        self._now -= 1
        self.steps.append(snapshot.step)
        return write_snapshot(folder, snapshot, keep)


def is_busy(saver: BackgroundSaver) -> bool:
    return saver._thread is not None and saver._thread.is_alive()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def test_what_is_written_is_the_state_of_the_moment(tmp_path: Path, disk: SlowDisk) -> None:
    weights, history = torch.ones(1000), {"gates": [1, 2], "inner": {"a": 1}}
    with BackgroundSaver(tmp_path, keep=2) as saver:
        saver.save(3, {"weights": weights, "history": history})
        assert is_busy(saver) and load_newest(tmp_path) is None  # training goes on while nothing is written yet
        weights.zero_()
        history["gates"].append(3)  # type: ignore[attr-defined]
        history["inner"] = {}
        disk.go_on.set()
    assert not is_busy(saver)
    step, state = load_newest(tmp_path) or (None, {})
    assert step == 3
    assert torch.equal(state["weights"], torch.ones(1000))
    assert state["history"] == {"gates": [1, 2], "inner": {"a": 1}}


def test_one_after_the_other(tmp_path: Path, disk: SlowDisk) -> None:
    disk.go_on.set()
    with BackgroundSaver(tmp_path, keep=2) as saver:
        for step in range(5):
            saver.save(step, {"number": step})
    assert disk.steps == [0, 1, 2, 3, 4] and disk.most == 1
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000003", "step-000000004"]
    assert load_newest(tmp_path) == (4, {"number": 4})


def full(*arguments: Any) -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("ask", ["save", "wait"])
def test_an_error_is_raised_at_the_next_call_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    saver = BackgroundSaver(tmp_path, keep=1)
    saver.save(1, {"number": 1})
    saver.wait()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_snapshot", full)
        saver.save(2, {"number": 2})
        with pytest.raises(OSError, match="No space left"):
            saver.save(3, {"number": 3}) if ask == "save" else saver.wait()
    assert load_newest(tmp_path) == (1, {"number": 1})
    saver.save(4, {"number": 4})
    saver.wait()
    assert load_newest(tmp_path) == (4, {"number": 4})


def test_a_full_disk_has_the_words_of_the_foreground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "write_snapshot", full)
    engine: Any = SimpleNamespace(num_processes=1, process_index=0)
    with (
        pytest.raises(TrainingError, match="cannot be written to: No space left on device") as caught,
        explain_failures(engine, RunFolder(tmp_path)),
        BackgroundSaver(tmp_path, keep=1) as saver,
    ):
        saver.save(1, {"number": 1})
    assert "make room" in str(caught.value)


def test_an_error_on_its_way_is_not_covered_by_that_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "write_snapshot", full)
    with pytest.raises(ZeroDivisionError), BackgroundSaver(tmp_path, keep=1) as saver:
        saver.save(1, {"number": 1})
        raise ZeroDivisionError


def test_what_cannot_be_saved_is_said_at_once(tmp_path: Path) -> None:
    with BackgroundSaver(tmp_path, keep=1) as saver, pytest.raises(TypeError, match="cannot hold a set"):
        saver.save(1, {"a": {1, 2}})


def test_training_does_not_wait_for_the_disk(tmp_path: Path, disk: SlowDisk) -> None:
    """Saving returns while the disk is still at work."""
    state = {"weights": torch.zeros(1_000_000)}
    with BackgroundSaver(tmp_path, keep=1) as saver:
        saver.save(1, state)
        assert is_busy(saver)  # the disk has not answered yet
        disk.go_on.set()
