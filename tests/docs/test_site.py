"""The site is built without a warning, and its reference has every field and every command."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import depl0
from depl0.app.recipes.recipe import SECTIONS
from tests.support.pages import ROOT

pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="MkDocs is not installed (depl0[docs])")
PAGES = (
    "index",
    "tutorial",
    "faq",
    "reference/api",
    "reference/recipe",
    "reference/commands",
    "examples/own_loop",
    "examples/prune_trained_network",
)


def loaded(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_recipe_field_is_described() -> None:
    pages = loaded("docs_pages")
    for title, section in SECTIONS.items():
        assert [name for name, _, text in pages.recipe_fields(section) if not text] == [], title
    assert "| `milestones` | `[]` |" in pages.recipe_page()


def test_every_command_is_described() -> None:
    pages = loaded("docs_pages")
    found = dict(pages.commands())
    assert {"depl0 prune", "depl0 recipes show", "depl0 recipes fields"} <= set(found)
    assert all(command.help for command in found.values())
    assert "`--budget" in pages.commands_page()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        assert (tmp_path / "site" / f"{page}.html").is_file(), page
    api = "".join(page.read_text() for page in (tmp_path / "site" / "reference").glob("*.html"))
    assert 'id="depl0.Search.step"' in api
    assert (tmp_path / "site" / "search" / "search_index.js").is_file(), "search works from the folder too"
    index = (tmp_path / "site" / "index.html").read_text()
    assert "javascripts/iframe-worker.js" in index and "unpkg.com" not in index
    for name in (*depl0.__all__, "Search.finish"):
        assert name == "Depl0Error" or f'id="depl0.{name}"' in api, name
