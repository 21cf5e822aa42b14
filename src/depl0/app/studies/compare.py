"""A comparison: several methods, budgets and seeds, everything else the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from depl0._util.io import atomic_write
from depl0._util.user_code import shown_spec
from depl0.app.data import shown_data
from depl0.app.methods import METHODS
from depl0.app.recipes.recipe import Recipe, folder_name, for_method, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.reports.canvas import style, write
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.processes import is_first_process
from depl0.app.studies.pictures import comparison
from depl0.app.studies.study import Outcome, Result, Study, to_json
from depl0.app.studies.tables import describe, made_with, over_seeds, tabulate
from depl0.app.studies.workers import Workers
from depl0.app.table import Table, markdown
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS

DIRECTIONS = ("forward", "backward")


def read_methods(text: str) -> tuple[str, ...]:
    """Parse methods separated by commas.

    >>> read_methods("dep-l0, dep-l0:backward, l0-hc")
    ('dep-l0', 'dep-l0:backward', 'l0-hc')
    """
    methods = tuple(word.strip() for word in text.split(","))
    if not all(methods):
        raise InputError(
            f"--methods takes names separated by commas, got an empty place in {text!r} instead.",
            hint="for example --methods dep-l0,dep-l0:backward,l0-hc.",
        )
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise InputError(f"--methods has {', '.join(twice)} more than once.", hint="name each method once.")
    return methods


def parts_of(method: str) -> list[str]:
    """Return a method and its variants, each of which may be defined in a user's file.

    >>> parts_of("dep-l0:conv1d:backward"), parts_of("dep-l0:mine.py:Gen"), parts_of("path/mine.py:Mine")
    (['dep-l0', 'conv1d', 'backward'], ['dep-l0', 'mine.py:Gen'], ['path/mine.py:Mine'])
    """
    parts, words = [], iter(method.split(":"))
    for word in words:
        known = word in METHODS or word in GENERATORS or word in DIRECTIONS
        name = None if known else next(words, None)
        parts.append(word if name is None else f"{word}:{name}")
    return parts


def gates_of(recipe: Recipe, method: str) -> dict[str, object]:
    """Return the recipe fields of a method, or of a variant: ``dep-l0:backward``, ``dep-l0:conv1d:backward``."""
    name, *variants = parts_of(method)
    fields = for_method(recipe, name)
    fields.pop("name", None)  # a member's name is that of its folder
    for variant in variants:
        if name == "dep-l0" and variant in DIRECTIONS:
            fields["gates.direction"] = variant
        elif name == "dep-l0" and (variant in GENERATORS or ":" in variant):
            fields["gates.generator"] = variant
        else:
            raise InputError(
                f"{method!r} is not a variant of a method: {variant!r} is neither a generator nor a direction.",
                hint=f"dep-l0 comes with {', '.join((*sorted(GENERATORS), *DIRECTIONS))}; others have no variants.",
            )
    return fields


@final
class Comparison:
    """Several methods, budgets and seeds with everything else the same: the members, and their table.

    Args:
        recipe: settings shared by all runs.
        methods: names or variants, as :func:`gates_of` reads them; none: the recipe's own method alone.
        seeds: number of runs for each method and budget, from the recipe's seed on.
        budgets: fractions of the cost to keep; none: the recipe's own budget.
    """

    def __init__(self, recipe: Recipe, methods: Sequence[str], seeds: int, budgets: Sequence[float] = ()) -> None:
        if budgets:
            recipe = with_overrides(recipe, {"gates.budget": sorted(budgets)[len(budgets) // 2]})
        if recipe.gates.budget is None:
            raise InputError(
                f"a comparison needs a budget, so that all methods may cost the same; recipe {recipe.name} has the "
                f"fixed λ {recipe.penalty.weight:g} instead.",
                hint="for example --budget 0.5.",
            )
        self.recipe = recipe
        self.metric = task_of(recipe).metric
        self.methods = tuple(methods) or (recipe.gates.method,)
        folders = ["-".join(map(folder_name, parts_of(method))) for method in self.methods]
        for method, name in zip(self.methods, folders, strict=True):
            if folders.count(name) > 1:
                raise InputError(
                    f"two methods would share the folder {name}: {method!r} is one.", hint="rename a class."
                )
        self.seeds = tuple(range(recipe.run.seed, recipe.run.seed + seeds))
        self.budgets = tuple(sorted(budgets, reverse=True)) or (recipe.gates.budget,)

    def members(self) -> dict[str, Recipe]:
        """Return the members, seed by seed, so that after an early end all methods have a similar number of runs."""
        return {
            self._name(method, budget, seed): with_overrides(recipe, {"run.seed": seed, "gates.budget": budget})
            for seed in self.seeds
            for budget in self.budgets
            for method, recipe in self.recipes().items()
        }

    def _name(self, method: str, budget: float, seed: int) -> str:
        several = [f"budget-{budget:g}"] if len(self.budgets) > 1 else []
        return "/".join(("-".join(map(folder_name, parts_of(method))), *several, f"seed-{seed}"))

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipe of each method."""
        return {method: with_overrides(self.recipe, gates_of(self.recipe, method)) for method in self.methods}

    def run(self, folder: Path, reporter: Reporter, workers: Workers | None = None) -> tuple[Study, Result, Table]:
        """Run the members that are not finished, and write the comparison's files after each of them."""
        study = Study(self.members(), folder)

        def publish(outcomes: list[Outcome]) -> tuple[Result, Table]:
            result = self.summarise(outcomes, folder)
            table = tabulate(result)
            if is_first_process():
                atomic_write(folder / "comparison.json", to_json(result))
                atomic_write(folder / "comparison.md", markdown(table, "# {}").encode())
                drawing = comparison(result)
                if drawing is not None:
                    with style():
                        write(drawing.figure(), folder, drawing.name)
            return result, table

        return study, *publish(study.run(reporter, publish, workers))

    def summarise(self, outcomes: list[Outcome], folder: Path) -> Result:
        """Return the content of ``comparison.json``."""
        described = {outcome.name: describe(outcome, self.metric) for outcome in outcomes}
        rows = [
            {
                "method": _shown(method),
                "budget": budget,
                **over_seeds(members, self.metric),
                "by_seed": {
                    str(seed): member[self.metric.name] for seed, member in zip(self.seeds, members, strict=True)
                },
            }
            for budget in self.budgets
            for method in self.methods
            for members in [[described[self._name(method, budget, seed)] for seed in self.seeds]]
        ]
        dense, gates = f"dense_{self.metric.name}", self.recipe.gates
        return {
            "study": "comparison",
            "recipe": self.recipe.name,
            "model": shown_spec(self.recipe.model.spec),
            "data": shown_data(self.recipe.data.spec),
            "metric": self.metric.to_dict(),
            "budget": gates.budget,
            "of": gates.of,
            "epochs": self.recipe.search.epochs,
            "finetune_epochs": self.recipe.finetune.epochs,
            "seeds": list(self.seeds),
            dense: next((member[dense] for member in described.values() if member[dense] is not None), None),
            "methods": rows,
            "members": list(described.values()),
            "made_with": made_with(folder / name for name in described),
        }


def _shown(method: str) -> str:
    """Return a method's name without local folders."""
    return ":".join(map(shown_spec, parts_of(method)))
