"""``depl0 bench``: what a training step costs, and how long the way to a pruned network is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depl0._util.io import write_whole
from depl0.app.cli.help import GroupedCommand
from depl0.errors import InputError

app = typer.Typer(help="Measure the speed of training with gates.", no_args_is_help=True, rich_markup_mode=None)


@app.command("step", cls=GroupedCommand)
def step_command(
    model: Annotated[list[str] | None, typer.Option(help="Network for 32x32 images; can be given again.")] = None,
    batch: Annotated[int, typer.Option(help="Images of a step.")] = 128,
    repeats: Annotated[int, typer.Option(help="Rounds; every variant takes one step in each.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Threads of torch; left out: its own choice.")] = None,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Lay weights out channels last.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write step.json and step.md to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a training step with gates with the dense one: time, operators, saved activations."""
    from depl0.app.bench.step import bench_step, step_table
    from depl0.app.models.spec import check_spec

    models = model or ["resnet56", "vgg16"]
    for name in models:
        check_spec(name)
    for option, value in (("--batch", batch), ("--repeats", repeats), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{option} must be a whole number of at least 1, got {value} instead.")
    for result in bench_step(models, batch, repeats, threads, channels_last):
        table = step_table(result)
        if out is not None:
            write_results(out, "step", result, table)
    typer.echo(json.dumps(result, indent=2) if as_json else table)


def write_results(folder: Path, name: str, result: dict[str, Any], text: str) -> None:
    """Write what was measured twice: as JSON, and as a table to read."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.json", (json.dumps(result, indent=2) + "\n").encode())
    write_whole(folder / f"{name}.md", (text + "\n").encode())
