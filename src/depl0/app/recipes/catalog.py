"""The recipes that come with depl0, by name (``builtin.toml``).

Each has three variants: the plain name is the paper's generator walked forward, ``-backward`` walks it backward, and
``-l0-hc`` has independent gates. The plain name of a recipe that starts from trained weights scores channels by
reconstruction instead, which did better there.

The paper's experiments as published are in ``paper/recipes.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, final

from depl0._util.registry import did_you_mean, load_plugins
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe, read_table, recipe_of
from depl0.errors import InputError
from depl0.gates.generators import Direction

BUILT_IN = Path(__file__).with_name("builtin.toml")
GENTLE_LR = 0.01
"""learning rate for trained networks on unknown data"""


@final
@dataclass(frozen=True)
class Variant:
    """One of the three kinds of gates that every recipe comes in."""

    suffix: str
    words: str
    method: str
    generator: str
    direction: Direction


FORWARD = Variant("", "Dep-L0 forward", "dep-l0", "fc", "forward")
BACKWARD = Variant("-backward", "Dep-L0 backward", "dep-l0", "fc", "backward")
L0_HC = Variant("-l0-hc", "L0-HC", "l0-hc", "independent", "forward")
VARIANTS = (FORWARD, BACKWARD, L0_HC)

Entry: TypeAlias = tuple[Callable[[Variant], Recipe], Variant, str]
"""factory of a recipe, its variant, and its title"""


def entries_of(path: Path) -> dict[str, Entry]:
    """Return the recipes of a file by name: every variant of its tables (the comment in ``builtin.toml``)."""
    tables: dict[str, dict[str, Any]] = {}
    for name, table in read_table(path).items():
        tables[name] = _merged(tables.get(table.pop("like", ""), {}), table)
    return {
        base + variant.suffix: (partial(_made, base, table), variant, table["title"])
        for base, table in tables.items()
        for variant in VARIANTS
    }


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some of its values changed, those of tables in it too."""
    inner = {key: _merged(table.get(key, {}), value) for key, value in changes.items() if isinstance(value, Mapping)}
    return {**table, **changes, **inner}


def _made(base: str, table: dict[str, Any], variant: Variant) -> Recipe:
    """Return a variant of the recipe in a table."""
    table = dict(table)
    changes = table.pop("variants", {}).get(variant.suffix[1:], {})
    if variant is not FORWARD:
        gates = {"method": variant.method, "generator": variant.generator, "direction": variant.direction}
        changes = _merged({"gates": gates}, changes)
    table = _merged(table, {"name": base + variant.suffix, **changes})
    del table["title"]
    return recipe_of(table)


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


@cache
def _entries() -> dict[str, Entry]:
    """Return every recipe by its name; other packages add recipes through the entry points ``depl0.recipes``."""
    entries = entries_of(BUILT_IN)
    for more in load_plugins("depl0.recipes").values():
        entries |= more()
    return entries


def names() -> tuple[str, ...]:
    """Return the names that :func:`get` accepts."""
    return tuple(_entries())


def base_names() -> tuple[str, ...]:
    """Return the names of the built-in recipes without their variants."""
    return tuple(read_table(BUILT_IN))


def get(name: str) -> Recipe:
    """Return the recipe of this name.

    >>> get("vgg16-cifar10").weight_optimizer.lr
    0.05
    """
    maker, variant, _ = _entry(name)
    return maker(variant)


def describe(name: str) -> str:
    """Describe a recipe in one line.

    >>> describe("vgg16-cifar10-paper-l0-hc")
    "The paper's VGG16 on CIFAR-10, as printed. L0-HC, 300 epochs, λ = 5e-07 on groups."
    """
    maker, variant, title = _entry(name)
    recipe = maker(variant)
    epochs = f"{recipe.search.epochs}"
    if recipe.finetune.epochs:
        epochs += f" + {recipe.finetune.epochs}"
    if recipe.gates.budget is not None:
        aim = f"budget {recipe.gates.budget:.0%} of {recipe.gates.of}"
    else:
        aim = f"λ = {recipe.penalty.weight:g} on {recipe.penalty.kind}"
    method = recipe.gates.method
    chosen_by = variant.words if method == variant.method else f"Channels by {method}"
    return f"{title} {chosen_by}, {epochs} epochs, {aim}."


def find(name_or_file: str) -> Recipe:
    """Return a recipe by its name, or read it from a ``.toml`` file."""
    is_file = name_or_file.lower().endswith(".toml") or os.path.basename(name_or_file) != name_or_file
    return read_recipe(name_or_file) if is_file else get(name_or_file)


def _entry(name: str) -> Entry:
    if name not in _entries():
        hint = did_you_mean(name, names()) or "depl0 recipes lists them."
        raise InputError(f"there is no recipe called {name!r}.", hint=f"{hint} A file's name ends in .toml.")
    return _entries()[name]
