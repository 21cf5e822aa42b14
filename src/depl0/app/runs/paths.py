"""Recipes of runs, whose user code runs only if :mod:`depl0.app.trust` allows it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from depl0.app.data.registry import NAMES
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe
from depl0.app.trust import check_trusted, code_file, trust_from_now_on


def recipe_of_run(file: Path, given: Collection[str] = ()) -> Recipe:
    """Read the recipe of a run. Code of fields that are not ``given`` by the user must be trusted."""
    recipe = read_recipe(file)
    for field, code in code_of(recipe).items():
        if field not in given:
            check_trusted(f"code {code}", f"{file} names code that was never run here: its {field} would run {code}.")
    return recipe


def find_recipe(name_or_file: str) -> Recipe:
    """Return a recipe by its name, or from a file. Code that the file of a run names must be trusted."""
    file = Path(name_or_file)
    is_of_run = file.with_name("environment.json").is_file() and file.is_file()
    return recipe_of_run(file) if is_of_run else catalog.find(name_or_file)


def code_of(recipe: Recipe) -> dict[str, str]:
    """Return the files with user code that a recipe's fields name."""
    fields = {
        "model.spec": "" if recipe.model.spec.startswith(("torchvision:", "timm:")) else recipe.model.spec,
        "data.spec": "" if recipe.data.spec.partition(":")[0] in NAMES else recipe.data.spec,
        "task.spec": recipe.task.spec,
        "gates.method": recipe.gates.method,
        "gates.generator": recipe.gates.generator,
    }
    files = {field: code_file(spec) for field, spec in fields.items() if ":" in spec}
    return {field: file for field, file in files.items() if file is not None}


def trust_code(recipe: Recipe) -> None:
    """Trust the code of a run that this user has started in later commands."""
    for file in code_of(recipe).values():
        trust_from_now_on(f"code {file}")
