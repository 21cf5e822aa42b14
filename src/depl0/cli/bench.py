"""``depl0 bench``: what a training step costs, and how long the way to a pruned network is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depl0._atomic import write_whole
from depl0.cli.help import GroupedCommand
from depl0.cli.prune import complete
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
    from depl0.bench.step import bench_step, step_table
    from depl0.models.spec import check_spec

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


@app.command("tts", cls=GroupedCommand)
def tts_command(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the result; give the same one to resume.")],
    recipe: Annotated[str, typer.Option(help="Recipe that the runs share (name or TOML file).")] = "custom",
    model: Annotated[str | None, typer.Option(help="Network to train; the recipe's own if left out.")] = "resnet20",
    data: Annotated[str | None, typer.Option(help="Data; the recipe's own if left out.")] = "cifar10:data",
    epochs: Annotated[int | None, typer.Option(help="Epochs of search.")] = None,
    finetune_epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    budget: Annotated[float, typer.Option(help="Share of the MACs that may be left.")] = 0.5,
    batch_size: Annotated[int | None, typer.Option(help="Images of a training step.")] = None,
    limit_train: Annotated[int | None, typer.Option(help="Use only so many training images.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of all runs; can be given again.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Runs of each, in turns, with successive seeds; 3 or more.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch; left out: its own choice.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this: dense, never, once, …; can be given again.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any recipe field: section.field=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the seconds of dense training with those of pruning, compacted never, once and progressively."""
    from depl0.recipes import catalog
    from depl0.runs.progress import make_reporter
    from depl0.studies.tts import ALL, bench_tts, find_members, tts_table

    options = {
        "model.spec": model,
        "data.spec": data,
        "search.epochs": epochs,
        "finetune.epochs": finetune_epochs,
        "data.batch_size": batch_size,
        "data.limit_train": limit_train,
    }
    base = complete(catalog.find(recipe), options, budget, None, set_ or [])
    if threads is not None and threads < 1:
        raise InputError(f"--threads must be a whole number of at least 1, got {threads} instead.")
    chosen = find_members(only) if only else ALL
    if pairs is not None and (seed or pairs < 1):
        raise InputError(
            f"--pairs must be a whole number of at least 1, without --seed, got {pairs} instead.",
            hint="--pairs 3 takes three seeds.",
        )
    seeds = sorted(set(seed or range(base.run.seed, base.run.seed + (pairs or 1))))
    result = bench_tts(base, out, seeds=seeds, chosen=chosen, threads=threads, note=make_reporter().note)
    table = tts_table(result)
    write_results(out, "tts", result, table)
    typer.echo(json.dumps(result, indent=2) if as_json else table)
