"""What runs that are compared have in common: everything in their recipes but generator, direction, λ and seed.

Runs of several λ form a curve over the cost. A setting is written down whole, so that runs of several machines and
sessions are put together only where nothing else differs. Where files lie on a machine is no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
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
    "penalty": ("weight",),
    "data": ("workers",),  # who reads the images changes no image
}
CHOSEN = "chosen for each kind of runs"


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

    @property
    def network(self) -> str:
        """What the recipe calls the network."""
        return self.description.partition(" on ")[0]

    @property
    def has_budget(self) -> bool:
        """Whether a budget closes gates, so that they follow its ramp."""
        told = self.fields()
        return "λ" not in self.description if told is None else told["gates"].get("budget") is not None


def setting_of(recipe: Recipe, chosen: Mapping[str, str] = MappingProxyType({})) -> Setting:
    """Return the setting of a run; ``chosen`` are fields whose values were chosen for each kind of runs.

    They differ between kinds on purpose: the setting says that, and what they were chosen from.
    """
    told: dict[str, Any] = {name: getattr(recipe, name).model_dump() for name in _SECTIONS}
    told["run"] = {name: getattr(recipe.run, name) for name in _OF_THE_RUN}
    told["model"] |= {"weights": PurePath(recipe.model.weights).name, "spec": shown_spec(recipe.model.spec)}
    told["task"]["spec"] = shown_spec(recipe.task.spec)
    # A data set of a known name is the same wherever it lies; a folder of images is known by its name alone.
    spec = with_path(
        recipe.data.spec, lambda path: PurePath(path).name if recipe.data.spec.startswith("folder") else ""
    )
    told["data"]["spec"] = shown_spec(spec.removesuffix(":"))
    for field, among in chosen.items():
        section, _, name = field.partition(".")
        told[section][name] = f"{CHOSEN}{among}"
    return recorded_setting(told)


def recorded_setting(told: Mapping[str, Any]) -> Setting:
    """Return a setting from its fields; those that recipes did not have when it was written take their defaults."""
    whole = {
        section: {
            name: value
            for name, value in (_defaults(section) | dict(fields)).items()
            if name not in _LEFT_OUT.get(section, ())
        }
        for section, fields in told.items()
    }
    return Setting(_describe(whole), _written(whole))


def _defaults(section: str) -> dict[str, Any]:
    fields = SECTIONS[section].model_fields if section in SECTIONS else {}
    return {
        name: field.default
        for name, field in fields.items()
        if not field.is_required() and (section != "run" or name in _OF_THE_RUN)
    }


def _written(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True, default=str, ensure_ascii=False)


def _describe(told: Mapping[str, Any]) -> str:
    gates, penalty, search, data = told["gates"], told["penalty"], told["search"], told["data"]
    budget = gates["budget"]
    asked = f"λ on {penalty['kind']}" if budget is None else f"{budget:.0%} of the {gates['of']}"
    start = "trained weights" if told["model"]["weights"] or told["model"]["pretrained"] else "from scratch"
    epochs = f"{search['epochs']} + {told['finetune']['epochs']} epochs"
    if data["epoch_images"]:
        epochs += f" of {data['epoch_images']} images"
    chosen = [
        f"{section}.{name} {value}"
        for section, fields in told.items()
        for name, value in fields.items()
        if str(value).startswith(CHOSEN)
    ]
    where = str(data["spec"]).partition(":")[0]
    parts = [f"{told['model']['spec']} on {where}", start, asked, f"preset {gates['preset']}"]
    if search["first_scores"] != "taylor" and budget is not None:
        parts.append(f"scores from {search['first_scores']}")
    return ", ".join([*parts, epochs, *chosen])
