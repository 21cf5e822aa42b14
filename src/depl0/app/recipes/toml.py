"""Recipes as TOML: read, written, and changed field by field.

A field that is None is left out of the file, and a field that a file leaves out takes its default, so that what is
written reads back as the same recipe.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depl0._util import io
from depl0._util.optional import require
from depl0._util.registry import nearest, question
from depl0.app.checks import Check, shown
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.section import Section, check_of
from depl0.app.recipes.sections import SECTIONS
from depl0.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The two fields of which exactly one is set: to set one is to clear the other.
_ALTERNATIVES = {"target.budget": "target.penalty_weight", "target.penalty_weight": "target.budget"}


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a TOML file."""
    try:
        text = io.read_bounded(Path(path), io.MAX_TEXT).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"recipe file {os.fspath(path)} does not exist.", hint="depl0 recipes lists those that are built in."
        ) from None
    except IsADirectoryError:
        raise InputError(f"recipe file {os.fspath(path)} is a folder; a .toml file was expected.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"recipe file {os.fspath(path)} is no text in UTF-8: {error}.") from error
    except (OSError, ValueError, io.TooLarge) as error:
        raise InputError(f"recipe file {os.fspath(path)!r} cannot be read: {error}.") from error
    return parse_recipe(text, source=f"recipe file {os.fspath(path)}")


def parse_recipe(text: str, source: str = "recipe") -> Recipe:
    """Make a recipe of the text of a TOML file; ``source`` is what an error calls it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last_line = text.count("\n") + 1
        reason = str(error).replace("at end of document", f"at line {last_line}, the end of the document")
        raise InputError(f"{source} is no valid TOML: {reason}.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested lists
        raise InputError(f"{source} is no valid TOML: {error}.") from error
    return _recipe_of(table)


def write_recipe(recipe: Recipe) -> str:
    """Give the text of the TOML file that reads back as this recipe."""
    table: dict[str, Any] = {"name": recipe.name}
    for title, kind in SECTIONS.items():
        section = getattr(recipe, title)
        values = {name: check_of(entry).write(getattr(section, name)) for name, entry in _fields(kind).items()}
        table[title] = {name: value for name, value in values.items() if value is not None}
    text: str = require("tomli_w", "tomli-w", "to write recipes").dumps(table)
    return text


def with_overrides(recipe: Recipe, overrides: Mapping[str, object]) -> Recipe:
    """Give the recipe with some fields changed, all at once: ``{"search.epochs": "20", "data.limit_train": 500}``.

    A string is read as a TOML value; one that is none, or that its field would not take as such, is taken as it is
    (``gates.groups=inner``), and ``none`` clears a field that may be left out. Setting one of ``target.budget`` and
    ``target.penalty_weight`` clears the other.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key, value in overrides.items():
        section, name, check = _find_field(key)
        changes.setdefault(section, {})[name] = _override(value, check)
    for key, other in _ALTERNATIVES.items():
        section, name = key.split(".")
        set_here = changes.get(section, {})
        if set_here.get(name) is not None and other not in overrides:
            set_here[other.split(".")[1]] = None

    top: dict[str, Any] = changes.pop("", {})
    sections = {title: dataclasses.replace(getattr(recipe, title), **values) for title, values in changes.items()}
    return dataclasses.replace(recipe, **top, **sections)


def _recipe_of(table: Mapping[str, Any]) -> Recipe:
    for key in table:
        if key != "name" and key not in SECTIONS:
            raise _unknown(key)
    arguments: dict[str, Any] = {title: _section_of(kind, table.get(title, {})) for title, kind in SECTIONS.items()}
    if "name" not in table:
        raise _missing("name", check_of(_fields(Recipe)["name"]))
    return Recipe(name=table["name"], **arguments)


def _section_of(kind: type[Section], values: object) -> Section:
    if not isinstance(values, Mapping):
        raise InputError(
            f"recipe section {kind.title} must be a table, got {shown(values)} instead.",
            hint=f"write [{kind.title}] and its fields below it.",
        )
    entries = _fields(kind)
    for key in values:
        if key not in entries:
            raise _unknown(f"{kind.title}.{key}")
    for name, entry in entries.items():
        if name not in values and _required(entry):
            raise _missing(f"{kind.title}.{name}", check_of(entry))
    return kind(**values)


def _fields(kind: type[Section]) -> dict[str, dataclasses.Field[Any]]:
    return {entry.name: entry for entry in dataclasses.fields(kind)}


def _required(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def _find_field(key: str) -> tuple[str, str, Check]:
    if key == "name":
        return "", key, check_of(_fields(Recipe)[key])
    section, dot, name = key.partition(".")
    entries = _fields(SECTIONS[section]) if dot and section in SECTIONS else {}
    if name not in entries:
        raise _unknown(key)
    return section, name, check_of(entries[name])


def _override(value: object, check: Check) -> object:
    if not isinstance(value, str):
        return value
    meant = _toml_value(value)
    if check.accepts(meant):
        return meant
    if check.accepts(value):
        return value
    return None if value.lower() == "none" and check.accepts(None) else meant


def _toml_value(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if list(table) == ["value"] else text


def _missing(key: str, check: Check) -> InputError:
    return InputError(f"recipe field {key} is missing; it must be {check.words}.")


def _unknown(key: str) -> InputError:
    """Say which field was probably meant: one of the same name elsewhere, or else one that is spelled alike."""
    section, dot, name = key.partition(".")
    all_keys = [f"{title}.{field}" for title, kind in SECTIONS.items() for field in _fields(kind)]
    own_names = list(_fields(SECTIONS[section])) if dot and section in SECTIONS else []
    meant = [known for known in all_keys if known.partition(".")[2] == (name if dot else key)]
    if not meant and own_names:
        meant = [f"{section}.{near}" for near in nearest(name, own_names)]
    elif not meant and dot:
        meant = nearest(key, all_keys)
    elif not meant:
        meant = [f"[{near}]" if near in SECTIONS else near for near in nearest(key, ["name", *SECTIONS])]

    if own_names:
        advice = f"the fields of [{section}] are {', '.join(own_names)}."
    else:
        advice = f"the sections are {', '.join(SECTIONS)}."
    return InputError(f"recipe has no field or section {key}.", hint=question(meant) or advice)
