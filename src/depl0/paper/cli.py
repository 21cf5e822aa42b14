"""``depl0 paper``: the paper's tables, ablation, claims and time to solution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depl0._util.io import atomic_write
from depl0.app.cli.compare import CPUS, GPUS, ON, OUT_HELP, engine_of, finish, study_folder
from depl0.app.cli.options import JSON, QUIET, SET, GroupedCommand, choice, echo, in_groups, one_of, with_options_of
from depl0.app.cli.prune import GROUPS, chosen_recipe, complete
from depl0.app.table import FORMATS, render
from depl0.errors import InputError

app = typer.Typer(
    help="Reproduce the paper: tables, ablation, claims, and the speed of training with gates.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WITHOUT_DATA, WITH_DATA = "digits", "digits,lenet5-fashion-mnist"


@app.command("ablation", cls=in_groups(GROUPS))
@with_options_of(chosen_recipe, without=("recipe", "model", "data", "task", "weights", "method"))
def ablation_command(
    options: dict[str, Any],
    recipes: Annotated[
        str | None, typer.Option(help=f"Recipes, by name or file (default: {WITH_DATA}; without --data: digits).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the Fashion-MNIST images.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each generator, from --seed on.")] = 3,
    out: Annotated[str | None, typer.Option(help=OUT_HELP.format(kind="ablation"))] = None,
    on: Annotated[str | None, ON] = None,
    cpus: Annotated[int, CPUS] = 1,
    gpus: Annotated[int, GPUS] = 0,
    quiet: Annotated[bool, QUIET] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Prune with every generator of the paper's appendix B; tabulate mean ± spread. Run it again to resume."""
    from depl0.app.runs.progress import make_reporter
    from depl0.app.studies.study import Study, carry_out
    from depl0.paper.ablation import Ablation, tabulate, with_data_folder

    reporter = make_reporter(quiet)
    if recipes is None and data is None:
        reporter.note("digits only: --data DIR adds LeNet-5 on Fashion-MNIST")
    names = recipes if recipes is not None else WITHOUT_DATA if data is None else WITH_DATA
    chosen = [chosen_recipe(recipe=name.strip(), **options) for name in names.split(",")]
    if data is not None:
        chosen = [with_data_folder(recipe, data) for recipe in chosen]
    ablation = Ablation(chosen, seeds)
    study = Study("ablation", ablation.members(), study_folder(out, "ablation", "generators"))
    result, table = carry_out(
        study,
        reporter,
        lambda outcomes: ablation.summarise(outcomes, study.folder),
        tabulate,
        engine=engine_of(on, cpus, gpus),
    )
    finish(study, result, table, as_json)


@app.command("claims", cls=GroupedCommand)
def claims_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs or of studies, or an earlier claims.json.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for README.md, claims.json and the figure.")] = None,
    method: Annotated[str, typer.Option(help="What is called Dep-L0, e.g. dep-l0 or dep-l0:conditioning=gates.")] = (
        "dep-l0"
    ),
    control: Annotated[
        str, typer.Option(help="The recipe field that makes a run of Dep-L0 the control W = 0.")
    ] = "gates.generator=bias",
    chosen: Annotated[
        list[str] | None,
        typer.Option(help="Recipe field chosen for each kind of runs, e.g. gate_optimizer.lr; can be repeated."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds that count, e.g. 0,1,2 (default: all).")] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "The paper's claims, judged by runs",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Judge the paper's claims by finished runs: confirmed, refuted, too weak to tell or open, with figures and n."""
    from depl0.paper.claims.judge import judge
    from depl0.paper.claims.page import page, write_claims

    try:
        counted = None if seeds is None else [int(seed) for seed in seeds.split(",")]
    except ValueError as error:
        raise InputError(
            f"--seeds takes integers, got {seeds!r} instead.", hint="for example --seeds 0,1,2."
        ) from error
    result = judge(runs, method, control, chosen or (), counted)
    text = page(result, title) if out is None else write_claims(result, out, title)
    typer.echo(json.dumps(result, indent=2, ensure_ascii=False) if as_json else text, nl=as_json)


TABLES = ("cifar10", "cifar100", "imagenet", "runtime", "ablation")


@app.command("tables", cls=GroupedCommand)
def tables_command(
    name: Annotated[str, typer.Argument(help=f"{', '.join(TABLES)}.", show_default=False)],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of your runs, as further rows.")] = None,
    format_: Annotated[str, choice("--format", FORMATS, "Output format.")] = "text",
) -> None:
    """Print published results, with your own runs as further rows."""
    one_of("the table", name, TABLES)
    from depl0.app.reports.run import read_runs
    from depl0.paper.literature import other_data, other_metric, table

    own = read_runs(runs or [], detailed=0)
    for run in own:
        data = other_data(name, run)
        if data is not None:
            typer.echo(f"note: {run.label} is a run on {data}; its numbers do not compare with these.", err=True)
        metric = other_metric(name, run)
        if metric is not None:
            typer.echo(f"note: {run.label} is judged by {metric}; this table has accuracies.", err=True)
    echo(render(table(name, own), format_), nl=False)


@app.command("tts", cls=GroupedCommand)
def tts_command(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the result; give the same one to resume.")],
    recipe: Annotated[str, typer.Option(help="Recipe that the runs share (name or TOML file).")] = "custom",
    model: Annotated[str | None, typer.Option(help="Network to train.")] = "resnet20",
    data: Annotated[str | None, typer.Option(help="Data set.")] = "cifar10:data",
    epochs: Annotated[int | None, typer.Option(help="Epochs of the search.")] = None,
    finetune_epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    budget: Annotated[float, typer.Option(help="Share of the MACs to keep.")] = 0.5,
    batch_size: Annotated[int | None, typer.Option(help="Images per training step.")] = None,
    limit_train: Annotated[int | None, typer.Option(help="Use only this many training images.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of all runs; can be repeated.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Runs of each, in turns, with successive seeds; 3 or more.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch (default: its own choice).")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this: dense, never, once, …; can be repeated.")
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare the seconds of dense training with those of pruning, compacted never, once and progressively."""
    from depl0.app.runs.paths import find_recipe
    from depl0.app.runs.progress import make_reporter
    from depl0.paper.tts import ALL, bench_tts, find_members, tts_table

    fields = {
        "model.spec": model,
        "data.spec": data,
        "search.epochs": epochs,
        "finetune.epochs": finetune_epochs,
        "gates.budget": budget,
        "data.batch_size": batch_size,
        "data.limit_train": limit_train,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    base = complete(find_recipe(recipe), given, set_)
    _check_positive("--threads", threads)
    chosen = find_members(only) if only else ALL
    if pairs is not None and (seed or pairs < 1):
        raise InputError(
            f"--pairs must be an integer of at least 1, without --seed, got {pairs} instead.",
            hint="--pairs 3 takes three seeds.",
        )
    seeds = sorted(set(seed or range(base.run.seed, base.run.seed + (pairs or 1))))
    result = bench_tts(base, out, seeds=seeds, chosen=chosen, threads=threads, note=make_reporter().note)
    table = tts_table(result)
    _write_results(out, "tts", result, table)
    typer.echo(json.dumps(result, indent=2) if as_json else table)


@app.command("step", cls=GroupedCommand)
def step_command(
    model: Annotated[list[str] | None, typer.Option(help="Network for 32x32 images; can be repeated.")] = None,
    batch: Annotated[int, typer.Option(help="Images per step.")] = 128,
    repeats: Annotated[int, typer.Option(help="Rounds; every variant takes one step in each.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Threads of torch (default: its own choice).")] = None,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Use the channels-last format.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for step.json and step.md.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare a training step with gates with the dense one: time, operators, saved activations."""
    from depl0.app.bench.step import bench_step, step_table
    from depl0.app.models.spec import check_spec

    models = model or ["resnet56", "vgg16"]
    for name in models:
        check_spec(name)
    for option, value in (("--batch", batch), ("--repeats", repeats), ("--threads", threads)):
        _check_positive(option, value)
    for result in bench_step(models, batch, repeats, threads, channels_last):
        table = step_table(result)
        if out is not None:
            _write_results(out, "step", result, table)
    typer.echo(json.dumps(result, indent=2) if as_json else table)


def _check_positive(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{option} must be an integer of at least 1, got {value} instead.")


def _write_results(folder: Path, name: str, result: dict[str, Any], text: str) -> None:
    """Write a measurement twice: as JSON, and as a table to read."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"{name}.json", (json.dumps(result, indent=2) + "\n").encode())
    atomic_write(folder / f"{name}.md", (text + "\n").encode())
