"""Where the files of a run are, for somebody who looks from another folder than it was started in."""

from __future__ import annotations

import os
from pathlib import Path

from depl0._util import io
from depl0.app.data import with_path
from depl0.app.recipes.recipe import Recipe

STARTED_IN = "started_in"
"""key of environment.json: the folder in which a run was started, as seen from its own"""


def started_in(run: Path) -> dict[str, str]:
    """Return what environment.json says of the folder in which a run is being started."""
    try:
        return {STARTED_IN: os.path.relpath(os.getcwd(), run)}
    except ValueError:  # another drive
        return {}


def resolve_paths(recipe: Recipe, run: Path) -> Recipe:
    """Return a run's recipe as seen from here: files that are not here are looked for where the run was started."""
    try:
        kept = io.read_json(run / "environment.json")
        base = run.absolute() / str(kept[STARTED_IN])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # a damaged run
        return recipe
    model, data, task = recipe.model, recipe.data, recipe.task
    return recipe.replace(
        model=model.replace(spec=_code(model.spec, base), weights=_file(model.weights, base)),
        data=data.replace(spec=with_path(_code(data.spec, base), lambda path: _file(path, base))),
        task=task.replace(spec=_code(task.spec, base)),
    )


def _code(spec: str, base: Path) -> str:
    """Find the file of ``file.py:make``."""
    file, colon, name = spec.rpartition(":")
    return f"{_file(file, base)}:{name}" if colon and file.endswith(".py") else spec


def _file(path: str, base: Path) -> str:
    here = Path(path).expanduser()
    there = base / here
    return os.path.normpath(there) if path and not here.exists() and there.exists() else path
