"""``depl0 report``: a run as a page with figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depl0.app.cli.options import choice, echo
from depl0.errors import InputError

FORMATS = ("html", "md", "json")


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to (html: the run's own, or report/ for several runs).")
    ] = None,
    format_: Annotated[str, choice("--format", FORMATS, "Output format.")] = "html",
) -> None:
    """Write report.html and figures; or print the report as Markdown or JSON."""
    from depl0.app.reports.report import as_text, write_report
    from depl0.app.reports.run import read_runs

    read = read_runs(runs)
    if out is None and format_ != "html":
        echo(as_text(read, format_), nl=False)
        return
    folder = out or (runs[0] if len(runs) == 1 else Path("report"))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for a report.", hint="choose another --out.")
    echo(write_report(read, folder, format_))
