"""The ablation of the paper's appendix B: which network should generate the gates?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.measures import (
    cells_of,
    describe,
    direction_note,
    made_with,
    made_with_note,
    number_of,
    over_seeds,
    score_titles,
    seconds,
    seeds_from,
    share,
    unfinished_note,
    value,
)
from depl0.app.studies.study import Outcome, Result
from depl0.app.table import Table, text_table
from depl0.app.tasks import metric_in
from depl0.errors import InputError

REFERENCE = "independent"
GENERATORS = (REFERENCE, "bias", "fc", "fc-relu", "fc-tanh", "conv1d", "conv1d-deep", "lstm")
"""Gates that know nothing of each other, ``fc`` with W held at 0, and the architectures of appendix B."""


def with_data_folder(recipe: Recipe, folder: str) -> Recipe:
    """Return the recipe with its images in another folder; one that has no folder stays as it is.

    >>> from depl0.app.recipes import catalog
    >>> with_data_folder(catalog.get("vgg16-cifar10"), "images").data.spec
    'cifar10:images'
    """
    kind, colon, _ = recipe.data.spec.partition(":")
    return with_overrides(recipe, {"data.spec": f"{kind}:{folder}"}) if colon else recipe


@final
class Ablation:
    """Every generator on every recipe, with several seeds, and the table."""

    def __init__(self, recipes: Sequence[Recipe], seeds: int) -> None:
        names = [recipe.name for recipe in recipes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"the ablation has recipe {', '.join(twice)} more than once.", hint="name each recipe once."
            )
        self.recipes = tuple(recipes)
        self._seeds = {recipe.name: seeds_from(recipe.run.seed, seeds) for recipe in recipes}
        self._metrics = {recipe.name: task_of(recipe).metric for recipe in recipes}

    def members(self) -> dict[str, Recipe]:
        """Return the members, seed by seed. The dense network is the same for all generators, so none trains it."""
        return {
            _name(recipe, generator, seed): with_overrides(
                recipe,
                {
                    "gates.method": "l0-hc" if generator == REFERENCE else "dep-l0",
                    "gates.generator": generator,
                    "search.dense_baseline": False,
                    "run.seed": seed,
                },
            )
            for recipe in self.recipes
            for seed in self._seeds[recipe.name]
            for generator in GENERATORS
        }

    def summarise(self, outcomes: list[Outcome], folder: Path) -> Result:
        """Return what ``ablation.json`` holds."""
        metrics = {
            _name(recipe, generator, seed): self._metrics[recipe.name]
            for recipe in self.recipes
            for seed in self._seeds[recipe.name]
            for generator in GENERATORS
        }
        described = {outcome.name: describe(outcome, metrics[outcome.name]) for outcome in outcomes}
        rows = [
            {
                "recipe": recipe.name,
                "generator": generator,
                "direction": recipe.gates.direction,
                "seeds": list(self._seeds[recipe.name]),
                "metric": self._metrics[recipe.name].to_dict(),
                **over_seeds(
                    [described[_name(recipe, generator, seed)] for seed in self._seeds[recipe.name]],
                    self._metrics[recipe.name],
                ),
            }
            for recipe in self.recipes
            for generator in GENERATORS
        ]
        return {
            "study": "ablation",
            "generators": rows,
            "members": list(described.values()),
            "made_with": made_with(folder / name for name in described),
        }


def _name(recipe: Recipe, generator: str, seed: int) -> str:
    return f"{recipe.name}/{generator}/seed-{seed}"


def tabulate(result: Result) -> Table:
    """Return the table of the ablation."""
    rows = []
    metrics = list(dict.fromkeys(metric_in(row) for row in result["generators"]))
    held_out = any(row[f"validation_{metric_in(row).name}"]["mean"] is not None for row in result["generators"])
    for row in result["generators"]:
        metric = metric_in(row)
        cells = cells_of(row, metric)
        rows.append(
            (
                row["recipe"],
                row["generator"],
                number_of(row),
                *([value(metric, *cells[f"validation_{metric.name}"])] if held_out else []),
                value(metric, *cells[metric.name]),
                share(*cells["macs_left"]),
                share(*cells["params_left"]),
                seconds(*cells["seconds"]),
            )
        )
    scores = [score_titles(metric, held_out) for metric in metrics]
    directions = " and ".join(sorted({row["direction"] for row in result["generators"]}))
    return text_table(
        "Generators of the paper's appendix B",
        (
            "recipe",
            "generator",
            "n",
            *(" / ".join(titles) for titles in zip(*scores, strict=True)),
            "MACs left",
            "parameters left",
            "time",
        ),
        tuple(rows),
        (
            f"Walked {directions}; mean ± sample standard deviation over n seeds. independent is L0-HC, the reference.",
            *(note for metric in metrics for note in direction_note(metric)),
            *unfinished_note(result["members"]),
            *made_with_note(result["made_with"]),
        ),
        words=("generator",),
    )
