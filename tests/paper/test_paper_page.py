"""docs/paper.md: what it names exists, and what it says about recipes is what they say."""

from __future__ import annotations

import re
from pathlib import Path
from pydoc import locate
from typing import Any

import pytest

from depl0.app.recipes import SECTIONS, Recipe, get, names

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
TEXT = PAGE.read_text(encoding="utf-8")
BASES = ("vgg16-cifar10", "resnet56-cifar10", "resnet50-imagenet")


def tables() -> list[list[list[str]]]:
    """Give all tables of the page as rows of cells, the header first."""
    found: list[list[list[str]]] = []
    before = ""
    for line in TEXT.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            if not re.fullmatch(r"[|\- ]+", line):
                found[-1].append([cell.strip() for cell in cells])
        before = line
    return found


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def value(recipe: Recipe, field: str) -> Any:
    section, _, name = field.partition(".")
    return getattr(getattr(recipe, section), name)


def written(content: object) -> str:
    """Write a value as the page does."""
    if content is None or content == ():
        return "–"
    if isinstance(content, bool):
        return str(content).lower()
    if isinstance(content, tuple):
        return ", ".join(map(written, content))
    return f"{content:g}" if isinstance(content, float) else str(content)


def settings() -> dict[str, dict[str, str]]:
    """Give what the tables of settings say, by recipe and field."""
    said: dict[str, dict[str, str]] = {}
    for header, *rows in tables():
        recipes = [name for cell in header[1:3] for name in code(cell)]
        if len(recipes) != 2 or not set(recipes) <= set(names()):
            continue
        for row in rows:
            for recipe, cell in zip(recipes, row[1:3], strict=True):
                said.setdefault(recipe, {})[code(row[0])[0]] = cell
    return said


def test_every_name_of_the_code_exists() -> None:
    assert [name for name in re.findall(r"`(depl0(?:\.\w+)+)`", TEXT) if locate(name) is None] == []


def test_recipes_have_the_values_that_the_page_says() -> None:
    said = settings()
    assert set(said) == {f"{base}-{source}" for base in BASES for source in ("paper", "authors")}
    for name, fields in said.items():
        recipe = get(name)
        assert {field: written(value(recipe, field)) for field in fields} == fields
        if "cifar10" in name:  # which stands for CIFAR-100 too
            other = get(name.replace("cifar10", "cifar100"))
            assert {field: written(value(other, field)) for field in fields} == fields


@pytest.mark.parametrize("base", BASES)
def test_no_difference_between_the_two_sources_is_left_out(base: str) -> None:
    paper, authors = get(f"{base}-paper"), get(f"{base}-authors")
    fields = [f"{title}.{name}" for title, section in SECTIONS.items() for name in section.model_fields]
    differing = {field for field in fields if value(paper, field) != value(authors, field)}
    assert differing <= set(settings()[f"{base}-paper"])
