"""Type a command, see what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from depl0.app.cli.app import main

ROOT, TOP = Path(__file__).parents[2], "<checkout>"
"""the checkout, whose path may hold spaces, and how words are split nevertheless"""


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
        code = main([word.replace(TOP, str(ROOT)) for word in words.replace(str(ROOT), TOP).split()])
        return Typed(code, *capsys.readouterr())

    return run
