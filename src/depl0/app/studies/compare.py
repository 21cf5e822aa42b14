"""A comparison: several methods, several seeds, everything else the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from depl0.app.recipes.method import for_method
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.task import task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.cells import change, direction_note, score_titles, seconds, share, value
from depl0.app.studies.choice import choice_note
from depl0.app.studies.measures import are_held_out, describe, made_with, made_with_note, unfinished_note
from depl0.app.studies.publish import Result
from depl0.app.studies.seeds import cells_of, number_of, over_seeds, seeds_from
from depl0.app.studies.study import Outcome
from depl0.app.table import Table, text_table
from depl0.app.tasks import metric_in
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS
from depl0.gates.threshold import COSTS

DIRECTIONS = ("forward", "backward")


def read_methods(text: str) -> tuple[str, ...]:
    """Read methods that are separated by commas.

    >>> read_methods("dep-l0, dep-l0:backward, l0-hc")
    ('dep-l0', 'dep-l0:backward', 'l0-hc')
    """
    methods = tuple(word.strip() for word in text.split(","))
    if not all(methods):
        raise InputError(
            f"--methods takes names separated by commas, got an empty place in {text!r} instead.",
            hint="for instance --methods dep-l0,dep-l0:backward,l0-hc.",
        )
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise InputError(f"--methods has {', '.join(twice)} more than once.", hint="name each method once.")
    return methods


def read_budgets(text: str) -> tuple[float, ...]:
    """Read budgets that are separated by commas.

    >>> read_budgets("0.5, 0.25")
    (0.5, 0.25)
    """
    try:
        budgets = tuple(float(word) for word in text.split(","))
    except ValueError:
        budgets = ()
    if not budgets or len(set(budgets)) < len(budgets) or not all(0 < budget <= 1 for budget in budgets):
        raise InputError(
            f"--budgets takes different shares above 0 and at most 1, got {text!r} instead.",
            hint="for instance --budgets 0.5,0.25,0.15.",
        )
    return budgets


def gates_of(recipe: Recipe, method: str) -> dict[str, object]:
    """Return the recipe fields of a method, or of a variant: ``dep-l0:backward``, ``dep-l0:conv1d:backward``."""
    name, *variants = method.split(":")
    fields = for_method(recipe, name)
    fields.pop("name", None)  # a member's name is its folder's
    for variant in variants:
        if name == "dep-l0" and variant in DIRECTIONS:
            fields["gates.direction"] = variant
        elif name == "dep-l0" and variant in GENERATORS:
            fields["gates.generator"] = variant
        else:
            raise InputError(
                f"{method!r} is no variant of a method: {variant!r} is neither a generator nor a direction of dep-l0.",
                hint=f"dep-l0 comes with {', '.join((*sorted(GENERATORS), *DIRECTIONS))}; others have no variants.",
            )
    return fields


@final
class Comparison:
    """The members of a comparison, and their table."""

    def __init__(
        self,
        recipe: Recipe,
        methods: Sequence[str],
        seeds: int,
        choice: Mapping[str, Any] | None = None,
        budgets: Sequence[float] = (),
    ) -> None:
        if budgets:  # what is chosen for a method is chosen in the middle
            recipe = with_overrides(recipe, {"target.budget": sorted(budgets)[len(budgets) // 2]})
        if recipe.target.budget is None:
            raise InputError(
                f"a comparison needs a budget, so that all methods may cost the same; recipe {recipe.name} has the "
                f"fixed λ {recipe.target.penalty_weight:g} instead.",
                hint="add for instance --budget 0.5.",
            )
        self.recipe, self._choice = recipe, choice
        self.metric = task_of(recipe).metric
        self.methods = tuple(methods)
        self.seeds = seeds_from(recipe.run.seed, seeds)
        self.budgets = tuple(sorted(budgets, reverse=True))
        self._names = {
            (method, budget, seed): "/".join(
                (method.replace(":", "-"), *([f"budget-{budget:g}"] if self.budgets else []), f"seed-{seed}")
            )
            for method in methods
            for budget in self._every_budget()
            for seed in self.seeds
        }

    def members(self) -> dict[str, Recipe]:
        """Return the members, seed by seed, so that an early end leaves every method with about as many."""
        return {
            self._names[method, budget, seed]: with_overrides(
                recipe, {"run.seed": seed, "target.budget": budget, **self._chosen(method)}
            )
            for seed in self.seeds
            for budget in self._every_budget()
            for method, recipe in self.recipes().items()
        }

    def _every_budget(self) -> tuple[float, ...]:
        budget = self.recipe.target.budget
        assert budget is not None, "a comparison has a budget"
        return self.budgets or (budget,)

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipe of each method."""
        return {method: with_overrides(self.recipe, gates_of(self.recipe, method)) for method in self.methods}

    def chosen(self, choice: Mapping[str, Any]) -> Comparison:
        """Return the comparison with what :class:`~depl0.app.studies.choice.Trials` chose for each method."""
        return Comparison(self.recipe, self.methods, len(self.seeds), choice, self.budgets)

    def _chosen(self, method: str) -> dict[str, object]:
        """Return what was chosen for a method; with that, all training images are trained on."""
        choice = self._choice
        return {} if choice is None else {choice["field"]: choice["chosen"][method], "data.validation": 0.0}

    def summarise(self, outcomes: list[Outcome], folder: Path) -> Result:
        """Return what ``comparison.json`` holds."""
        described = {outcome.name: describe(outcome, self.metric) for outcome in outcomes}
        target = self.recipe.target
        return {
            "study": "comparison",
            "recipe": self.recipe.name,
            "model": self.recipe.model.spec,
            "data": self.recipe.data.spec,
            "metric": self.metric.to_dict(),
            "budget": target.budget,
            "of": target.of,
            "epochs": self.recipe.search.epochs,
            "finetune_epochs": self.recipe.finetune.epochs,
            "seeds": list(self.seeds),
            "choice": self._choice,
            "methods": [
                {
                    "method": method,
                    "budget": budget,
                    **over_seeds([described[self._names[method, budget, seed]] for seed in self.seeds], self.metric),
                }
                for budget in self._every_budget()
                for method in self.methods
            ],
            "members": list(described.values()),
            "made_with": made_with(folder / name for name in described),
        }


def tabulate(result: Result) -> Table:
    """Return the table of a comparison."""
    rows, metric = [], metric_in(result)
    held_out, several = are_held_out(result["members"], metric), len({row["budget"] for row in result["methods"]}) > 1
    for row in result["methods"]:
        cells = cells_of(row, metric)
        rows.append(
            (
                row["method"],
                *([f"{row['budget']:g}"] if several else []),
                number_of(row),
                *([value(metric, *cells[f"validation_{metric.name}"])] if held_out else []),
                value(metric, *cells[metric.name]),
                change(metric, *cells["change"]),
                share(*cells["macs_left"]),
                share(*cells["params_left"]),
                seconds(*cells["seconds"]),
            )
        )
    budgets = "Budgets as shares" if several else f"Budget {result['budget']:g}"
    note = (
        f"{budgets} of the {COSTS[result['of']]}, {result['epochs']} epochs of search, "
        f"{result['finetune_epochs']} of fine-tuning; mean ± sample standard deviation over n seeds."
    )
    titles = ("method", *(["budget"] if several else []), "n", *score_titles(metric, held_out))
    return text_table(
        f"{result['recipe']}: methods compared",
        (*titles, "change", "MACs left", "parameters left", "time"),
        tuple(rows),
        (
            note,
            *choice_note(result.get("choice")),
            *direction_note(metric),
            *unfinished_note(result["members"]),
            *made_with_note(result["made_with"]),
        ),
    )
