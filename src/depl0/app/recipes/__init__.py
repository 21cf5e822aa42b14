"""Recipes: complete descriptions of a training, as frozen data, as TOML, and by name.

>>> recipe = with_overrides(get("digits"), {"search.epochs": "5"})
>>> recipe.search.epochs
5
>>> parse_recipe(write_recipe(recipe)) == recipe
True
"""

from depl0.app.recipes.catalog import describe, find, get, names
from depl0.app.recipes.recipe import SECTIONS, Recipe, task_of
from depl0.app.recipes.toml import parse_recipe, read_recipe, with_overrides, write_recipe

__all__ = [
    "SECTIONS",
    "Recipe",
    "describe",
    "find",
    "get",
    "names",
    "parse_recipe",
    "read_recipe",
    "task_of",
    "with_overrides",
    "write_recipe",
]
