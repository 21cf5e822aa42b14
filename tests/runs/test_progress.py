"""What people see: everything on stderr, a live bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from depl0.app.runs.progress import Live, Plain, Reporter, logged, make_reporter

LINE: dict[str, Any] = {
    "epoch": 2,
    "loss": 0.51234,
    "test_accuracy": 91.7,
    "expected": {"macs_share": 0.512},
    "kept": {"macs_share": 0.498},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(reporter: Reporter) -> None:
    reporter.note("a [note]")
    reporter.begin("search", epochs=4, steps=3, done=3)
    for _ in range(3):
        reporter.step()
    reporter.epoch(LINE)
    reporter.note("in between")
    reporter.end()
    reporter.end()


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Plain())
    out, err = capsys.readouterr()
    assert out == ""
    note, epoch, *_ = err.splitlines()
    assert note == "a [note]"
    assert epoch.startswith("search 2/4  loss 0.512  accuracy 91.70 %  MACs expected 51.2% kept 49.8%")
    assert epoch.endswith(" left")


def test_a_live_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    reporter = make_reporter()
    assert isinstance(reporter, Live)
    tell(reporter)
    shown = terminal.getvalue()
    for words in ("a [note]", "in between", "search", "epoch 2", "loss 0.512", "91.70 %", "51.2%", "49.8%"):
        assert words in shown
    assert capsys.readouterr().out == ""


def test_one_bar_covers_all_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    reporter = Live()
    reporter.plan({"dense": 100, "search": 100, "finetune": 100})
    reporter.begin("search", epochs=1, steps=100, done=0)
    assert reporter._progress is not None
    (task,) = reporter._progress.tasks
    assert task.description.split() == ["✓", "dense", "▸", "search", "finetune"]
    assert (task.completed, task.total) == (100, 300)
    for _ in range(20):
        reporter.step()
    (task,) = reporter._progress.tasks
    assert task.completed == 120
    reporter.begin("recovery", epochs=1, steps=50, done=0)  # unknown when the run began
    (task,) = reporter._progress.tasks
    assert task.description.split() == ["✓", "dense", "✓", "search", "▸", "recovery", "finetune"]
    assert (task.completed, task.total) == (200, 350)
    reporter.end()


def test_lines_inside_a_long_epoch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr("depl0.app.runs.progress.time.monotonic", lambda: now[0])
    reporter = Plain()
    reporter.begin("search", epochs=4, steps=390, done=0)
    step = {"epoch": 1, "step": 20, "steps": 390, "loss": 2.0, "train_accuracy": 25.0, "lr": 0.05}
    for seconds, place in ((10.0, 20), (31.0, 60), (40.0, 80), (62.0, 120)):
        now[0] = seconds
        reporter.progress({**step, "step": place})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[4] for line in lines] == ["60/390", "120/390"]
    assert lines[0] == "search epoch 1 step 60/390  loss 2.000  accuracy 25.00 % (training)  lr 0.05"


def test_everything_is_in_the_log_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(logged(Reporter(), tmp_path / "log.txt"))
    assert capsys.readouterr() == ("", "")
    lines = [line[21:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines == [
        "a [note]",
        "search 2/4  loss 0.512  accuracy 91.70 %  MACs expected 51.2% kept 49.8%  0:00:00 left",
        "in between",
    ]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make_reporter(quiet=True)
    assert type(reporter) is Reporter
    tell(reporter)
    assert capsys.readouterr() == ("", "")


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(make_reporter(), Plain)
