"""Table of the concurrent members of a study on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live as LiveDisplay
from rich.table import Table

from depl0.app.runs.folder import Lines
from depl0.app.runs.progress import Live, Reporter
from depl0.app.table import printable
from depl0.errors import FormatError

EVERY_SECONDS = 2.0


@contextmanager
def member_table(
    folder: Path, statuses: Callable[[], dict[str, str]], reporter: Reporter
) -> Iterator[Callable[[], None]]:
    """Show a table within the context if the reporter shows a live display. Yield a function that updates it."""
    if not isinstance(reporter, Live):
        yield lambda: None
        return
    last = 0.0
    with LiveDisplay(console=Console(stderr=True), auto_refresh=False, transient=True) as display:

        def renew() -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY_SECONDS:
                last = time.monotonic()
                display.update(_table(folder, statuses()), refresh=True)

        yield renew


def _table(folder: Path, statuses: dict[str, str]) -> Table:
    table = Table("member", "status", "where", box=None)
    for name, status in statuses.items():
        table.add_row(printable(name), status, "" if status == "not started" else where(folder / name))
    return table


def where(run: Path) -> str:
    """Describe the progress of a run by its last recorded epoch."""
    try:
        lines = [line for line in Lines(run / "metrics.jsonl").read() if "epoch" in line and "phase" in line]
    except FormatError:  # it is being written
        return ""
    return f"{lines[-1]['phase']}, epoch {lines[-1]['epoch']}" if lines else ""
