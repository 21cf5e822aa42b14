"""The same recipe with another method."""

from __future__ import annotations

from depl0.app.methods import Learned, find_method
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import GatesSection


def for_method(recipe: Recipe, name: str) -> dict[str, object]:
    """Return the fields to change so that a recipe uses a method: its name, and a generator that the method allows.

    >>> from depl0.app.recipes import catalog
    >>> for_method(catalog.get("digits"), "l0-hc")
    {'name': 'digits-l0-hc', 'gates.method': 'l0-hc', 'gates.generator': 'independent'}
    >>> for_method(catalog.get("digits"), "fpgm")
    {'name': 'digits-fpgm', 'gates.method': 'fpgm'}
    """
    method, before = find_method(name), recipe.gates.method
    if name == before:
        return {}
    fields: dict[str, object] = {"name": f"{recipe.name}-{name}", "gates.method": name}
    if isinstance(method, Learned):
        had = find_method(before)
        if method.generators is not None and recipe.gates.generator not in method.generators:
            fields["gates.generator"] = method.generators[0]
        elif method.generators is None and isinstance(had, Learned) and had.generators is not None:
            fields["gates.generator"] = GatesSection().generator  # the old one was forced by the old method
    return fields
