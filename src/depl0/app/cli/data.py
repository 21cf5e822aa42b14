"""``depl0 data``: get the data sets that may be downloaded."""

from __future__ import annotations

from typing import Annotated

import typer

from depl0.app.cli.help import GroupedCommand

app = typer.Typer(help="Get data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Get data sets."""


@app.command("get", cls=GroupedCommand)
def get_command(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    directory: Annotated[str, typer.Argument(help="Folder to put it in.")],
) -> None:
    """Download a data set, check it, and unpack it."""
    from depl0.app.data.download import get

    typer.echo(get(name, directory))
