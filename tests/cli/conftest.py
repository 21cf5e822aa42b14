"""Type a command, see what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from depl0.app.cli.app import main


@dataclass(frozen=True)
class Typed:
    """What a command did."""

    code: int
    out: str
    err: str


Type = Callable[[str], Typed]


@pytest.fixture
def type_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Return a function that runs the command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> Typed:
        capsys.readouterr()
        code = main(words.split())
        return Typed(code, *capsys.readouterr())

    return run
