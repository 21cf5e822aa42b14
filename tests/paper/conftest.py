"""Runs that the tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.app.reports.run import Run, read_run
from tests.support.runs import write_run


@pytest.fixture
def known(tmp_path: Path) -> Run:
    """A finished run in known numbers."""
    return read_run(write_run(tmp_path / "known"))
