"""``depl0 recipes``: the recipes there are, and what they say."""

from __future__ import annotations

from typing import Annotated

import typer

from depl0.app.cli.help import GroupedCommand

app = typer.Typer(help="List the recipes, or show one.", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def list_command(context: typer.Context) -> None:
    """List the recipes."""
    if context.invoked_subcommand is not None:
        return
    from depl0.app.recipes import catalog

    width = max(len(name) for name in catalog.names())
    for name in catalog.names():
        typer.echo(f"{name:<{width}}  {catalog.describe(name)}")


@app.command("show", cls=GroupedCommand)
def show_command(name: Annotated[str, typer.Argument(help="A recipe's name or TOML file.")]) -> None:
    """Print a recipe as TOML, complete."""
    from depl0.app.recipes import catalog
    from depl0.app.recipes.toml import write_recipe

    typer.echo(write_recipe(catalog.find(name)), nl=False)
