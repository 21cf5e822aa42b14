"""What the commands of studies share: where the folder is, what is printed, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from depl0.app.studies.study import Result, Study
    from depl0.app.table import Table

OUT_HELP = "Folder of the study (default: runs/NAME-{kind}); the same command continues what it holds."
WIDE = 200
"""columns of a table that no terminal shows: lines are not broken"""


def study_folder(out: str | None, kind: str, name: str) -> Path:
    """Return the folder of a study."""
    return Path(out) if out else Path("runs") / f"{name}-{kind}"


def finish(study: Study, result: Result, table: Table, as_json: bool) -> None:
    """Print the result; end with an error if members failed."""
    from depl0.app.runtime.engine import is_first_process
    from depl0.app.studies.study import raise_if_failed

    if is_first_process():
        if as_json:
            typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        else:
            print_table(table)
            typer.echo(f"files in {study.folder}")
    raise_if_failed(study)


def print_table(table: Table) -> None:
    """Print a table on stdout, as wide as the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(file=sys.stdout, highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)
    shown = RichTable(title=table.title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    last = len(table.columns) - 1
    for place, column in enumerate(table.columns):
        justify: JustifyMethod = "right" if column.is_number else "left"
        shown.add_column(column.title, justify=justify, no_wrap=place != last, overflow="fold")
    for row in table.shown():
        shown.add_row(*row)
    with console.capture() as capture:
        console.print(shown, *table.notes, sep="\n")
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))  # rich fills lines with spaces
