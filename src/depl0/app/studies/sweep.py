"""A sweep: the same recipe at several budgets, and the frontier of the metric against cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.task import task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.cells import change, direction_note, score_titles, seconds, share, value
from depl0.app.studies.measures import are_held_out, describe, made_with, made_with_note, status
from depl0.app.studies.publish import Result
from depl0.app.studies.study import Outcome
from depl0.app.table import Table, text_table
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError
from depl0.gates.threshold import COSTS


def read_budgets(text: str) -> tuple[float, ...]:
    """Read budgets that are separated by commas, largest first.

    >>> read_budgets("0.3, 0.7")
    (0.7, 0.3)
    """
    budgets = [_read_budget(word.strip(), text) for word in text.split(",")]
    twice = sorted({budget for budget in budgets if budgets.count(budget) > 1}, reverse=True)
    if twice:
        raise InputError(f"--budgets has {_list(twice)} more than once: {text!r}.", hint="name each budget once.")
    return tuple(sorted(budgets, reverse=True))


def _read_budget(word: str, text: str) -> float:
    wanted = "--budgets takes numbers above 0 and at most 1, separated by commas"
    try:
        budget = float(word)
    except ValueError:
        found = f"{word!r} in {text!r}" if word else f"an empty place in {text!r}"
        raise InputError(f"{wanted}, got {found} instead.", hint="for instance --budgets 0.7,0.5,0.3.") from None
    if not (math.isfinite(budget) and 0 < budget <= 1):
        hint = f"for {budget:g} % write {budget / 100:g}." if 1 < budget <= 100 else "0.5 leaves half of the cost."
        raise InputError(f"{wanted}, got {word} instead.", hint=hint)
    return budget


def _list(numbers: list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def sweep_members(recipe: Recipe, budgets: tuple[float, ...]) -> dict[str, Recipe]:
    """Return the members of a sweep: the recipe at each budget."""
    return {f"budget-{budget}": with_overrides(recipe, {"target.budget": budget}) for budget in budgets}


def summarise(recipe: Recipe, budgets: tuple[float, ...], outcomes: list[Outcome], folder: Path) -> Result:
    """Return what ``sweep.json`` holds."""
    members: list[dict[str, Any]] = []
    metric = task_of(recipe).metric
    dense = f"dense_{metric.name}"
    for budget, outcome in zip(budgets, outcomes, strict=True):
        described = describe(outcome, metric)
        members.append({"name": described.pop("name"), "budget": budget, **described})
    for member in members:
        member["on_frontier"] = _is_on_frontier(member, members, metric)
    return {
        "study": "sweep",
        "recipe": recipe.name,
        "model": recipe.model.spec,
        "data": recipe.data.spec,
        "seed": recipe.run.seed,
        "of": recipe.target.of,
        "metric": metric.to_dict(),
        dense: next((m[dense] for m in members if m[dense] is not None), None),
        "members": members,
        "made_with": made_with(folder / outcome.name for outcome in outcomes),
    }


def _is_on_frontier(member: dict[str, Any], members: list[dict[str, Any]], metric: Metric) -> bool:
    """Tell whether no other member is at least as good in both, and better in one."""
    if member[metric.name] is None:
        return False
    mine = (member[metric.name], member["cost_left"])
    others = [(m[metric.name], m["cost_left"]) for m in members if m[metric.name] is not None]
    return not any(
        not metric.better(mine[0], found) and cost <= mine[1] and (found, cost) != mine for found, cost in others
    )


def tabulate(result: Result) -> Table:
    """Return the table of a sweep."""
    metric = metric_in(result)
    held_out = are_held_out(result["members"], metric)
    rows = [
        (
            f"{member['budget']:g}",
            *([value(metric, member[f"validation_{metric.name}"])] if held_out else []),
            value(metric, member[metric.name]),
            change(metric, member["change"]),
            share(member["macs_left"]),
            share(member["params_left"]),
            seconds(member["seconds"]),
            "yes" if member["on_frontier"] else "no" if member[metric.name] is not None else "",
            status(member),
        )
        for member in result["members"]
    ]
    score = value(metric, result[f"dense_{metric.name}"])
    dense = ("dense", *([""] if held_out else []), score, "", share(1.0), share(1.0), "", "", "")
    notes = (
        f"One run a budget, seed {result['seed']}; a budget is the share of the {COSTS[result['of']]} that may be "
        "left. "
        f"On the frontier: no other budget is better in {metric.label} or cost without being worse in the other.",
        *direction_note(metric),
    )
    return text_table(
        f"{result['recipe']}: {metric.label} against cost",
        (
            "budget",
            *score_titles(metric, held_out),
            "change",
            "MACs left",
            "parameters left",
            "time",
            "frontier",
            "status",
        ),
        (dense, *rows),
        notes + made_with_note(result["made_with"]),
        words=("frontier", "status"),
    )
