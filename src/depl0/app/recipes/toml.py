"""Recipes as TOML: read, written, and changed field by field.

A field that is None is left out of the file, and a field that a file leaves out takes its default, so that a written
recipe reads back as the same recipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic.fields import FieldInfo

from depl0._util import io
from depl0._util.registry import nearest, question
from depl0.app.recipes.recipe import SECTIONS, Recipe
from depl0.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Exactly one of these is set: setting one clears the other.
_ALTERNATIVES = {"gates.budget": "penalty.weight", "penalty.weight": "gates.budget"}


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a TOML file."""
    return recipe_of(read_table(path))


def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a TOML file."""
    name = f"recipe file {os.fspath(path)}"
    try:
        text = io.read_bounded(Path(path), io.MAX_TEXT).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{name} does not exist.", hint="depl0 recipes lists the built-in ones.") from None
    except (OSError, ValueError) as error:  # a folder, not UTF-8, a path with a null character
        raise InputError(f"recipe file {os.fspath(path)!r} cannot be read: {error}.", "use a .toml file.") from error
    return _parse(text, name)


def parse_recipe(text: str, source: str = "recipe") -> Recipe:
    """Return the recipe in the text of a TOML file; errors call it ``source``."""
    return recipe_of(_parse(text, source))


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # very long numbers, deeply nested lists
        raise InputError(f"{source} is not valid TOML: {error}.") from error


def recipe_of(table: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a parsed TOML file."""
    return Recipe(**({title: {} for title in SECTIONS} | dict(table)))


def write_recipe(recipe: Recipe) -> str:
    """Return the text of a TOML file that reads back as this recipe."""
    return tomli_w.dumps(recipe.model_dump(exclude_none=True))


def with_overrides(recipe: Recipe, overrides: Mapping[str, object]) -> Recipe:
    """Return a recipe with some fields changed, all at once: ``{"search.epochs": "20", "data.limit_train": 500}``.

    A string is read as a TOML value, or taken literally if its field would not accept that (``gates.groups=inner``);
    ``none`` clears a field that may be left out. Setting ``gates.budget`` clears ``penalty.weight``, and vice versa.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key, value in overrides.items():
        section, name, field = _find_field(key)
        changes.setdefault(section, {})[name] = _parsed(value, field)
    for key, other in _ALTERNATIVES.items():
        (section, name), (other_section, other_name) = key.split("."), other.split(".")
        if changes.get(section, {}).get(name) is not None and other not in overrides:
            changes.setdefault(other_section, {})[other_name] = None

    top: dict[str, Any] = changes.pop("", {})
    return recipe.replace(**top, **{title: getattr(recipe, title).replace(**new) for title, new in changes.items()})


def _find_field(key: str) -> tuple[str, str, FieldInfo]:
    if key == "name":
        return "", key, Recipe.model_fields[key]
    section, dot, name = key.partition(".")
    fields = SECTIONS[section].model_fields if dot and section in SECTIONS else {}
    if name not in fields:
        raise _unknown(key)
    return section, name, fields[name]


def _parsed(value: object, field: FieldInfo) -> object:
    if not isinstance(value, str):
        return value
    # Text that is also a TOML value (a folder called 2024) is written in quotes.
    return None if value.lower() == "none" and field.default is None else _toml_value(value)


def _toml_value(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if list(table) == ["value"] else text


def _unknown(key: str) -> InputError:
    """Return the error for an unknown field, with the name that was probably meant."""
    section, _, name = key.partition(".")
    known = [f"{title}.{field}" for title, kind in SECTIONS.items() for field in kind.model_fields]
    meant = [each for each in known if each.partition(".")[2] == (name or key)] or nearest(key, ["name", *known])
    own = SECTIONS[section].model_fields if section in SECTIONS else SECTIONS
    return InputError(f"recipe has no field {key}.", hint=question(meant) or f"there are {', '.join(own)}.")


def describe_fields(titles: Sequence[str]) -> list[dict[str, Any]]:
    """Return name, default and description of every field in some sections.

    >>> describe_fields(["penalty"])[0]["name"], describe_fields(["penalty"])[2]["default"]
    ('penalty.weight', 'count')
    """
    return [
        {
            "name": f"{title}.{name}",
            "required": field.is_required(),
            "default": "none" if field.is_required() else _as_text(field.default),
            "description": " ".join((field.description or "").split()),
        }
        for title in titles
        for name, field in SECTIONS[title].model_fields.items()
    ]


def _as_text(value: object) -> str:
    """Return a value in the syntax of ``--set``."""
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
