"""The task of a recipe."""

from __future__ import annotations

from depl0.app.recipes.recipe import Recipe
from depl0.app.tasks import Task, find_task_for
from depl0.errors import InputError


def task_of(recipe: Recipe) -> Task:
    """Return the task that a recipe names, with its settings; a task of the user's own is imported here.

    >>> from depl0.app.recipes import catalog
    >>> task_of(catalog.get("digits"))
    Classification(label_smoothing=0.0)
    """
    section = recipe.task
    task = find_task_for(section.spec, dict(section.settings or ()), recipe.search.label_smoothing)
    if recipe.search.distill and not task.distills:
        raise InputError(
            f"recipe field search.distill must be 0 where task.spec is {section.spec!r}, got "
            f"{recipe.search.distill:g} instead: the task does not say how to learn from another network.",
            hint="give the task a method distill(outputs, wanted, temperature), or leave --distill out.",
        )
    return task


def distill_share(recipe: Recipe, task: Task) -> float:
    """Return the dense network's share of the loss: 0 where the task does not say how to learn from it."""
    return recipe.distill if task.distills else 0.0
