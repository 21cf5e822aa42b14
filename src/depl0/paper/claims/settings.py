"""What runs that are compared have in common: everything in their recipes but generator, direction and seed.

A setting is written down whole, so that runs of several machines and sessions are put together only where nothing else
differs. Where files lie on a machine is no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, final

from depl0._util.user_code import shown_spec
from depl0.app.data import with_path
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import SECTIONS

OF_AN_ARM = ("method", "generator", "direction", "conditioning")
"""fields of ``gates`` that are what is compared, with ``search.dependency``; all others belong to the setting"""
_SECTIONS = (
    *("model", "data", "task", "gates", "penalty", "search", "distill"),
    *("weight_optimizer", "gate_optimizer", "finetune"),
)
_OF_THE_RUN = ("precision",)
_LEFT_OUT = {
    "gates": OF_AN_ARM,
    "search": ("dependency",),
    "data": ("workers",),
}  # who reads the images changes no image


@final
@dataclass(frozen=True)
class Setting:
    """One setting; two are the same only if nothing is known to differ."""

    description: str
    """as people read it: what usually differs between settings"""
    recipe: str | None
    """the whole of it, as JSON; None: an older file has the description alone"""
    apart: str = ""
    """where the whole is not known: what the older file called it, so that its settings stay apart"""

    def fields(self) -> dict[str, Any] | None:
        """Return the recipe's fields by section; None: they are not known."""
        found: dict[str, Any] | None = None if self.recipe is None else json.loads(self.recipe)
        return found

    def for_any_penalty(self) -> str | None:
        """Return the setting without λ, so that runs of several λ form a curve; None: it has a budget, or no whole."""
        told = self.fields()
        if told is None or told["gates"].get("budget") is not None:
            return None
        told["penalty"].pop("weight", None)
        return _written(told)


def setting_of(recipe: Recipe, choice: Mapping[str, Any] | None = None) -> Setting:
    """Return the setting of a run; ``choice`` is what a comparison chose for each method on held-out images.

    What was chosen for each method differs between methods on purpose: the setting says what it was chosen from.
    """
    told: dict[str, Any] = {name: getattr(recipe, name).model_dump() for name in _SECTIONS}
    told["run"] = {name: getattr(recipe.run, name) for name in _OF_THE_RUN}
    for section, names in _LEFT_OUT.items():
        for name in names:
            told[section].pop(name)
    told["model"] |= {"weights": PurePath(recipe.model.weights).name, "spec": shown_spec(recipe.model.spec)}
    told["task"]["spec"] = shown_spec(recipe.task.spec)
    # A data set of a known name is the same wherever it lies; a folder of images is known by its name alone.
    spec = with_path(
        recipe.data.spec, lambda path: PurePath(path).name if recipe.data.spec.startswith("folder") else ""
    )
    told["data"]["spec"] = shown_spec(spec.removesuffix(":"))
    if choice is not None:
        section, _, name = str(choice["field"]).partition(".")
        told[section][name] = f"chosen for each method from {', '.join(choice['values'])}"
    return recorded_setting(told)


def recorded_setting(told: Mapping[str, Any]) -> Setting:
    """Return a setting from its fields; those that recipes did not have when it was written take their defaults."""
    whole = {section: {**_defaults(section), **fields} for section, fields in told.items()}
    return Setting(_describe(whole), _written(whole))


def _defaults(section: str) -> dict[str, Any]:
    fields = SECTIONS[section].model_fields if section in SECTIONS else {}
    left_out = _LEFT_OUT.get(section, ())
    return {
        name: field.default
        for name, field in fields.items()
        if not field.is_required() and name not in left_out and (section != "run" or name in _OF_THE_RUN)
    }


def _written(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True, default=str, ensure_ascii=False)


def _describe(told: Mapping[str, Any]) -> str:
    gates, penalty, search, data = told["gates"], told["penalty"], told["search"], told["data"]
    if gates["budget"] is not None:
        asked = f"{gates['budget']:.0%} of the {gates['of']}"
    else:
        asked = f"λ = {penalty['weight']:g} on {penalty['kind']}"
    start = "trained weights" if told["model"]["weights"] or told["model"]["pretrained"] else "from scratch"
    epochs = f"{search['epochs']} + {told['finetune']['epochs']} epochs"
    if data["epoch_images"]:
        epochs += f" of {data['epoch_images']} images"
    chosen = [
        f"{section}.{name} {value}"
        for section, fields in told.items()
        for name, value in fields.items()
        if str(value).startswith("chosen for each method")
    ]
    where = str(data["spec"]).partition(":")[0]
    parts = [f"{told['model']['spec']} on {where}", start, asked, f"preset {gates['preset']}"]
    if search["first_scores"] != "taylor" and gates["budget"] is not None:
        parts.append(f"scores from {search['first_scores']}")
    return ", ".join([*parts, epochs, *chosen])
