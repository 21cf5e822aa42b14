"""Resolve the paths of a run from another folder than the one in which it was started.

Code that only the run's own files name may be untrusted. It runs only if :mod:`depl0._util.user_code` trusts it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from depl0._util import io
from depl0._util.user_code import check_trusted, code_file, trust_from_now_on
from depl0.app.data import with_path
from depl0.app.data.registry import NAMES
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe

STARTED_IN = "started_in"
"""key of environment.json: the folder in which a run was started, relative to the run's folder"""


def started_in(run: Path) -> dict[str, str]:
    """Return the entry of environment.json for the folder in which a run is started."""
    try:
        return {STARTED_IN: os.path.relpath(os.getcwd(), run)}
    except ValueError:  # another drive
        return {}


def resolve_paths(recipe: Recipe, run: Path) -> Recipe:
    """Return a run's recipe with paths resolved.

    Files not found here are searched in the folder where the run was started.

    Raises:
        InputError: this user has not trusted the code that is found there.
    """
    found, before = _resolved(recipe, run), code_of(recipe)
    _check({field: file for field, file in code_of(found).items() if file != before.get(field)}, run)
    return found


def _resolved(recipe: Recipe, run: Path) -> Recipe:
    try:
        kept = io.read_json(run / "environment.json")
        base = run.absolute() / str(kept[STARTED_IN])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a damaged run
        return recipe
    model, data, task, gates = recipe.model, recipe.data, recipe.task, recipe.gates
    return recipe.replace(
        model=model.replace(spec=_code(model.spec, base), weights=_file(model.weights, base)),
        data=data.replace(spec=with_path(_code(data.spec, base), lambda path: _file(path, base))),
        task=task.replace(spec=_code(task.spec, base)),
        gates=gates.replace(method=_code(gates.method, base), generator=_code(gates.generator, base)),
    )


def recipe_of_run(file: Path, given: Collection[str] = ()) -> Recipe:
    """Read the recipe of a run with paths resolved. Code that is not ``given`` by the user must be trusted."""
    recipe = _resolved(read_recipe(file), file.parent)
    _check({field: code for field, code in code_of(recipe).items() if field not in given}, file)
    return recipe


def find_recipe(name_or_file: str) -> Recipe:
    """Return a recipe by its name, or from a file. Code that the file of a run names must be trusted."""
    recipe = catalog.find(name_or_file)
    if Path(name_or_file).with_name("environment.json").is_file() and Path(name_or_file).is_file():
        _check(code_of(recipe), Path(name_or_file))
    return recipe


def code_of(recipe: Recipe) -> dict[str, str]:
    """Return the files with user code that a recipe's fields name."""
    fields = {
        "model.spec": None if recipe.model.spec.startswith(("torchvision:", "timm:")) else recipe.model.spec,
        "data.spec": None if recipe.data.spec.partition(":")[0] in NAMES else recipe.data.spec,
        "task.spec": recipe.task.spec,
        "gates.method": recipe.gates.method,
        "gates.generator": recipe.gates.generator,
    }
    files = {field: code_file(spec) for field, spec in fields.items() if spec is not None and ":" in spec}
    return {field: file for field, file in files.items() if file is not None}


def trust_code(recipe: Recipe) -> None:
    """Trust the code of a run that this user has started in later commands."""
    for file in code_of(recipe).values():
        trust_from_now_on(f"code {file}")


def _check(code: dict[str, str], place: Path) -> None:
    for field, file in code.items():
        check_trusted(f"code {file}", f"{place} names code that was never run here: its {field} would run {file}.")


def _code(spec: str, base: Path) -> str:
    """Return the file of ``file.py:make``."""
    file, colon, name = spec.rpartition(":")
    return f"{_file(file, base)}:{name}" if colon and file.endswith(".py") else spec


def _file(path: str, base: Path) -> str:
    here = Path(path).expanduser()
    there = base / here
    return os.path.normpath(there) if path and not here.exists() and there.exists() else path
