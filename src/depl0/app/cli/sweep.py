"""``depl0 sweep``: several budgets, and the frontier of the metric against cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from depl0.app.cli.options import with_options_of
from depl0.app.cli.prune import chosen_recipe
from depl0.app.cli.study import OUT_HELP, finish, study_folder


@with_options_of(chosen_recipe, without=("budget", "penalty_weight"))
def sweep_command(
    options: dict[str, Any],
    budgets: Annotated[str, typer.Option(help="Shares of the cost that may be left, e.g. 0.7,0.5,0.3.")],
    out: Annotated[str | None, typer.Option(help=OUT_HELP.format(kind="sweep"))] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Prune at several budgets; write table, JSON and picture of the metric against cost. Run it again to resume."""
    from depl0.app.runs.progress import make_reporter
    from depl0.app.studies.frontier import draw_frontier
    from depl0.app.studies.publish import carry_out
    from depl0.app.studies.study import Study
    from depl0.app.studies.sweep import read_budgets, summarise, sweep_members, tabulate

    shares = read_budgets(budgets)
    recipe = chosen_recipe(**options)
    study = Study("sweep", sweep_members(recipe, shares), study_folder(out, "sweep", recipe.name))
    result, table = carry_out(
        study,
        make_reporter(quiet),
        lambda outcomes: summarise(recipe, shares, outcomes, study.folder),
        tabulate,
        draw_frontier,
    )
    finish(study, result, table, as_json)
