"""One member of a benchmark as a process of its own: ``python -m depl0.paper.member dense|prune RECIPE.toml OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

from depl0.app.recipes.toml import read_recipe
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import make_reporter
from depl0.app.training.dense import train_dense
from depl0.app.training.prune import prune
from depl0.errors import Depl0Error

KINDS = {"dense": train_dense, "prune": prune}


def main(kind: str, recipe_file: str, out: str) -> int:
    """Carry out a recipe, from where it was left off if it was begun before; return the exit code."""
    goes_on = RunFolder(Path(out)).has_begun
    try:
        KINDS[kind](read_recipe(recipe_file), out, resume=goes_on, reporter=make_reporter())
    except Depl0Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
