"""The ablation of the paper's appendix B: which network should generate the gates?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from depl0.errors import InputError
from depl0.recipes.recipe import Recipe
from depl0.recipes.toml import with_overrides
from depl0.studies.measures import describe, made_with, made_with_note, status
from depl0.studies.publish import Result
from depl0.studies.study import Outcome
from depl0.studies.table import Table, percent, seconds, share

REFERENCE = "independent"
GENERATORS = (REFERENCE, "fc", "fc-relu", "fc-tanh", "conv1d", "conv1d-deep", "lstm")
"""Gates that know nothing of each other, and the architectures of appendix B."""


def with_data_folder(recipe: Recipe, folder: str) -> Recipe:
    """Return the recipe with its images in another folder; one that has no folder stays as it is.

    >>> from depl0.recipes import catalog
    >>> with_data_folder(catalog.get("vgg16-cifar10"), "images").data.spec
    'cifar10:images'
    """
    kind, colon, _ = recipe.data.spec.partition(":")
    return with_overrides(recipe, {"data.spec": f"{kind}:{folder}"}) if colon else recipe


@final
class Ablation:
    """Every generator on every recipe, and the table."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        names = [recipe.name for recipe in recipes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"the ablation has recipe {', '.join(twice)} more than once.", hint="name each recipe once."
            )
        self._rows = {
            f"{recipe.name}/{generator}": (recipe, generator) for recipe in recipes for generator in GENERATORS
        }

    def members(self) -> dict[str, Recipe]:
        """Return the members. The dense network is the same for all generators, so none trains it."""
        return {
            name: with_overrides(
                recipe,
                {
                    "gates.method": "l0-hc" if generator == REFERENCE else "dep-l0",
                    "gates.generator": generator,
                    "search.dense_baseline": False,
                },
            )
            for name, (recipe, generator) in self._rows.items()
        }

    def summarise(self, outcomes: list[Outcome], folder: Path) -> Result:
        """Return what ``ablation.json`` holds."""
        rows = []
        for outcome in outcomes:
            recipe, generator = self._rows[outcome.name]
            settings = {
                "recipe": recipe.name,
                "generator": generator,
                "direction": recipe.gates.direction,
                "seed": recipe.run.seed,
            }
            rows.append({**settings, **describe(outcome)})
        return {
            "study": "ablation",
            "members": rows,
            "made_with": made_with(folder / outcome.name for outcome in outcomes),
        }


def tabulate(result: Result) -> Table:
    """Return the table of the ablation."""
    rows = [
        (
            member["recipe"],
            member["generator"],
            percent(member["accuracy"]),
            share(member["macs_left"]),
            share(member["params_left"]),
            seconds(member["seconds"]),
            status(member),
        )
        for member in result["members"]
    ]
    seeds = ", ".join(sorted({str(member["seed"]) for member in result["members"]}))
    directions = " and ".join(sorted({member["direction"] for member in result["members"]}))
    return Table(
        "Generators of the paper's appendix B",
        ("recipe", "generator", "accuracy", "MACs left", "parameters left", "time", "status"),
        tuple(rows),
        (
            f"One run each (n = 1), seed {seeds}, walked {directions}; independent is L0-HC, the reference.",
            *made_with_note(result["made_with"]),
        ),
    )
