"""``depl0 ablation``: every generator architecture of the paper's appendix B."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from depl0.cli.options import with_options_of
from depl0.cli.prune import chosen_recipe
from depl0.cli.study import OUT_HELP, finish, study_folder

WITHOUT_DATA, WITH_DATA = "digits", "digits,lenet5-fashion-mnist"


@with_options_of(
    chosen_recipe, without=("recipe", "model", "data", "task", "weights", "penalty_weight", "method", "generator")
)
def ablation_command(
    options: dict[str, Any],
    recipes: Annotated[
        str | None, typer.Option(help=f"Recipes, by name or file (default: {WITH_DATA}; without --data: digits).")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of the images, for recipes whose images lie in one: Fashion-MNIST.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each generator, from --seed on.")] = 3,
    out: Annotated[str | None, typer.Option(help=OUT_HELP.format(kind="ablation"))] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Prune with every generator of the paper's appendix B; tabulate mean ± spread. Run it again to resume."""
    from depl0.runs.progress import make_reporter
    from depl0.studies.ablation import Ablation, tabulate, with_data_folder
    from depl0.studies.publish import carry_out
    from depl0.studies.study import Study

    reporter = make_reporter(quiet)
    if recipes is None and data is None:
        reporter.note("digits only: --data DIR adds LeNet-5 on Fashion-MNIST")
    names = recipes if recipes is not None else WITHOUT_DATA if data is None else WITH_DATA
    chosen = [chosen_recipe(recipe=name.strip(), **options) for name in names.split(",")]
    if data is not None:
        chosen = [with_data_folder(recipe, data) for recipe in chosen]
    ablation = Ablation(chosen, seeds)
    study = Study("ablation", ablation.members(), study_folder(out, "ablation", "generators"))
    result, table = carry_out(study, reporter, lambda outcomes: ablation.summarise(outcomes, study.folder), tabulate)
    finish(study, result, table, as_json)
