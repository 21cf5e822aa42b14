"""``depl0 tables``: the paper's tables, later methods' results, and your own runs among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depl0._table import FORMATS, render
from depl0.cli.choice import choice, one_of

TABLES = ("cifar10", "cifar100", "imagenet", "runtime", "ablation")


def tables_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join(TABLES)}.", show_default=False)],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of your runs, as further rows.")] = None,
    format_: Annotated[str, choice("--format", FORMATS, "What to print.")] = "text",
) -> None:
    """Print published results, with your own runs as further rows."""
    one_of("the table", name, TABLES)
    from depl0.reports.literature import other_data, other_metric, table
    from depl0.reports.run import read_runs

    own = read_runs(runs or [], detailed=0)
    for run in own:
        data = other_data(name, run)
        if data is not None:
            typer.echo(f"note: {run.label} is a run on {data}; its numbers do not compare with these.", err=True)
        metric = other_metric(name, run)
        if metric is not None:
            typer.echo(f"note: {run.label} is judged by {metric}; this table has accuracies.", err=True)
    typer.echo(render(table(name, own), format_), nl=False)
