"""``depl0 tables``: the paper's tables, later methods' results, and your own runs among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depl0._table import FORMATS, render
from depl0.cli.choice import one_of
from depl0.reports.literature import TABLES, other_data, other_metric, table
from depl0.reports.run import read_runs


def tables_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join(TABLES)}.", show_default=False)],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of your runs, as further rows.")] = None,
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "text",
) -> None:
    """Print published results, with your own runs as further rows."""
    one_of("the table", name, TABLES)
    one_of("--format", format_, FORMATS)
    own = read_runs(runs or [], detailed=0)
    for run in own:
        data = other_data(name, run)
        if data is not None:
            typer.echo(f"note: {run.label} is a run on {data}; its numbers do not compare with these.", err=True)
        metric = other_metric(name, run)
        if metric is not None:
            typer.echo(f"note: {run.label} is judged by {metric}; this table has accuracies.", err=True)
    typer.echo(render(table(name, own), format_), nl=False)
