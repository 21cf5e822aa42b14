"""The recipes that come with depl0, by name (``builtin.toml``).

Each has three variants: the plain name is the paper's generator walked forward, ``-backward`` walks it backward, and
``-l0-hc`` has independent gates. The plain name of a recipe that starts from trained weights scores channels by
reconstruction instead, which did better there.

The paper's experiments as published are in ``depl0/paper/recipes.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from depl0._util.registry import did_you_mean, load_plugins
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe, read_table, recipe_of
from depl0.errors import InputError

BUILT_IN = Path(__file__).with_name("builtin.toml")
GENTLE_LR = 0.01
"""learning rate for trained networks on unknown data"""


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "-backward": {"method": "dep-l0", "generator": "fc", "direction": "backward"},
    "-l0-hc": {"method": "l0-hc", "generator": "independent"},
}
"""the section [gates] of the three kinds of gates that every recipe comes in, by the end of its name"""


@cache
def _tables() -> dict[str, dict[str, Any]]:
    """Return the table of every recipe by its name, with its title.

    Other packages add recipes through the entry points ``depl0.recipes``: functions that return a file like
    ``builtin.toml``.
    """
    bases: dict[str, dict[str, Any]] = {}
    tables: dict[str, dict[str, Any]] = {}
    for file in (BUILT_IN, *(more() for more in load_plugins("depl0.recipes").values())):
        for base, table in read_table(file).items():
            bases[base] = _merged(bases.get(table.pop("like", ""), {}), table)
            plain = dict(bases[base])
            changes = plain.pop("variants", {})
            for suffix, gates in VARIANTS.items():
                variant = _merged({"gates": gates}, changes.get(suffix[1:], {}))
                tables[base + suffix] = _merged(plain, {"name": base + suffix, **variant})
    return tables


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some of its values changed, those of tables in it too."""
    inner = {key: _merged(table.get(key, {}), value) for key, value in changes.items() if isinstance(value, Mapping)}
    return {**table, **changes, **inner}


def for_trained(recipe: Recipe) -> Recipe:
    """Return a recipe for a network that starts from trained weights.

    Its gates need no warm-up, and training must preserve the weights. One curve of low learning rates covers search and
    fine-tuning, and the cut is compensated by a refit. Scores from reconstruction replace Dep-L0 forward, because they
    need no search and did better from trained weights (benchmarks/results/comparison).
    """
    gates = recipe.gates
    if (gates.method, gates.generator, gates.direction) == ("dep-l0", "fc", "forward"):  # not chosen by name
        gates = gates.replace(method="reconstruction")
    return recipe.replace(
        gates=gates,
        search=recipe.search.replace(epochs=20, warmup=0.0, first_scores="reconstruction", compensate=True),
        weight_optimizer=recipe.weight_optimizer.replace(lr=GENTLE_LR, schedule="cosine", warmup_epochs=0.5),
        finetune=recipe.finetune.replace(epochs=30, lr=None, schedule="continued"),
    )


def names() -> tuple[str, ...]:
    """Return the names that :func:`get` accepts."""
    return tuple(_tables())


def get(name: str) -> Recipe:
    """Return the recipe of this name.

    >>> get("vgg16-cifar10").weight_optimizer.lr
    0.05
    """
    if name not in _tables():
        hint = did_you_mean(name, names()) or "depl0 recipes lists them."
        raise InputError(f"there is no recipe called {name!r}.", hint=f"{hint} A file's name ends in .toml.")
    return recipe_of({key: value for key, value in _tables()[name].items() if key != "title"})


def describe(name: str) -> str:
    """Describe a recipe in one line.

    >>> describe("vgg16-cifar10-paper-l0-hc")
    "The paper's VGG16 on CIFAR-10, as printed. l0-hc, 300 + 0 epochs."
    """
    recipe = get(name)
    epochs = f"{recipe.search.epochs} + {recipe.finetune.epochs} epochs"
    return f"{_tables()[name]['title']} {recipe.gates.method}, {epochs}."


def find(name_or_file: str) -> Recipe:
    """Return a recipe by its name, or read it from a ``.toml`` file."""
    is_file = name_or_file.lower().endswith(".toml") or os.path.basename(name_or_file) != name_or_file
    return read_recipe(name_or_file) if is_file else get(name_or_file)
