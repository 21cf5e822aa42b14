"""The recipes of the paper's experiments as published (``recipes.toml``), for the catalogue of recipes."""

from __future__ import annotations

from pathlib import Path

from depl0.app.recipes.catalog import Entry, entries_of


def entries() -> dict[str, Entry]:
    """Return the factory, variant and title of every recipe by name."""
    return entries_of(Path(__file__).with_name("recipes.toml"))
