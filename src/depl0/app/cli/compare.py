"""``depl0 compare``: several methods in the same harness."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from depl0.app.cli.options import with_options_of
from depl0.app.cli.prune import chosen_recipe
from depl0.app.cli.study import OUT_HELP, finish, study_folder


@with_options_of(chosen_recipe, without=("penalty_weight", "method", "generator", "direction"))
def compare_command(
    options: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, e.g. dep-l0,dep-l0:backward,dep-l0:conv1d,l0-hc,l1-norm (default: the recipe's own)."
        ),
    ] = None,
    choose: Annotated[
        str | None,
        typer.Option(
            help="A recipe field and values to try for each method on held-out images, e.g. finetune.lr=0.01,0.02,0.05."
        ),
    ] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Several budgets instead of one, e.g. 0.5,0.25,0.15; they are drawn as lines.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each method, from --seed on.")] = 3,
    out: Annotated[str | None, typer.Option(help=OUT_HELP.format(kind="comparison"))] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run several methods with the same recipe, budget and epochs; tabulate mean ± spread. Run it again to resume."""
    from depl0.app.runs.progress import make_reporter
    from depl0.app.studies.choice import Trials, read_choice
    from depl0.app.studies.compare import Comparison, read_budgets, read_methods, tabulate
    from depl0.app.studies.pictures import draw_comparison
    from depl0.app.studies.study import Study, carry_out

    recipe = chosen_recipe(**options)
    several = () if budgets is None else read_budgets(budgets)
    comparison = Comparison(recipe, () if methods is None else read_methods(methods), seeds, several)
    folder, reporter = study_folder(out, "comparison", recipe.name), make_reporter(quiet)
    if choose is not None:
        if not (folder / "study.json").exists():
            Study("comparison", comparison.members(), folder)  # refuses a folder of something else before any trial
        trials = Trials(comparison.recipes(), read_choice(choose), comparison.metric)
        comparison = comparison.chosen(trials.run(folder, reporter))
    study = Study("comparison", comparison.members(), folder)
    result, table = carry_out(
        study, reporter, lambda outcomes: comparison.summarise(outcomes, study.folder), tabulate, draw_comparison
    )
    finish(study, result, table, as_json)
