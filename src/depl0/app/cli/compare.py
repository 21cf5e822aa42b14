"""``depl0 compare``: run several methods or budgets under the same conditions, and print the results of studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depl0.app.cli.options import JSON, QUIET, echo, read_budgets, with_options_of
from depl0.app.cli.prune import chosen_recipe
from depl0.app.table import aligned

OUT = typer.Option(help="Folder of the study (default: runs/NAME-comparison); run the same command again to resume.")
ON = typer.Option(help="Run members at the same time: local:N (processes), ray[:ADDRESS], slurm[:PARTITION].")
CPUS = typer.Option(help="CPU cores of each member, with --on.", min=1)
GPUS = typer.Option(help="GPUs of each member, with --on.", min=0)


@with_options_of(chosen_recipe, without=("method",))
def compare_command(
    options: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, e.g. dep-l0,dep-l0:backward,dep-l0:conv1d,l0-hc,l1-norm (default: the recipe's own)."
        ),
    ] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Several budgets instead of one, e.g. 0.5,0.25,0.15; they are drawn as lines.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each method, from --seed on.", min=1)] = 3,
    out: Annotated[str | None, OUT] = None,
    on: Annotated[str | None, ON] = None,
    cpus: Annotated[int, CPUS] = 1,
    gpus: Annotated[int, GPUS] = 0,
    quiet: Annotated[bool, QUIET] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare methods, budgets and seeds.

    All runs share one recipe; the table has mean ± spread. Run the command again to resume.
    """
    from depl0.app.runs.progress import make_reporter
    from depl0.app.runtime.processes import is_first_process
    from depl0.app.studies.compare import Comparison, read_methods
    from depl0.app.studies.study import raise_if_failed
    from depl0.app.studies.workers import Resources, find_workers

    recipe = chosen_recipe(**options)
    several = () if budgets is None else read_budgets(budgets)
    comparison = Comparison(recipe, () if methods is None else read_methods(methods), seeds, several)
    workers = None if on is None else find_workers(on, Resources(cpus, gpus))
    folder = Path(out or f"runs/{recipe.name}-comparison")
    study, result, table = comparison.run(folder, make_reporter(quiet), workers)
    if is_first_process():
        if as_json:
            typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        else:
            rows = [[column.title for column in table.columns], *table.shown()]
            lines = aligned(rows, [column.is_number for column in table.columns])
            echo("\n".join([table.title, "", *lines, "", *table.notes]))
            echo(f"files in {folder}")
    raise_if_failed(study)
