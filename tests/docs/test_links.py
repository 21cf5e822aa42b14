"""Every link between the pages of the repository leads somewhere."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import NAMES, ROOT

LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")
MADE = {"contributing.md", "changelog.md", "security.md", "reference/recipe.md", "reference/commands.md"}
"""pages that scripts/docs_pages.py adds to the site"""


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {"#" + re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    wrong = []
    for target, anchor in LINK.findall(text):
        goal = (page.parent / target).resolve() if target else page
        if goal.is_relative_to(ROOT / "docs") and str(goal.relative_to(ROOT / "docs")) in MADE:
            continue
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text())):
            wrong.append(target + anchor)
    assert wrong == []


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    pages = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}
    assert pages - listed == set()
