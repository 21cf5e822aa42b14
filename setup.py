"""The project's page on a package index: the README, with links that work there.

Everything else about the package is in pyproject.toml. A README's relative links lead nowhere on a package index. They
become absolute ones where pyproject.toml names a Repository under [project.urls], and plain text where it does not.
"""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def index_page(readme: str, repository: "str | None") -> str:
    """Return the README for a package index."""

    def absolute(found: "re.Match[str]") -> str:
        picture, words, path = found.groups()
        if repository is not None:
            kind = "raw" if picture else "blob"
            return f"{picture}[{words}]({repository.rstrip('/')}/{kind}/main/{path})"
        return "" if picture else words

    return RELATIVE.sub(absolute, readme)


def repository() -> "str | None":
    """Return the address under [project.urls], if there is one."""
    found = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


if __name__ == "__main__":
    setup(
        long_description=index_page((ROOT / "README.md").read_text(encoding="utf-8"), repository()),
        long_description_content_type="text/markdown",
    )
