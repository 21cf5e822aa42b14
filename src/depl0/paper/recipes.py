"""Published recipes: the paper as printed, and the code that its authors published (``recipes.toml``)."""

from pathlib import Path


def entries() -> Path:
    """Return the file with the recipes."""
    return Path(__file__).with_name("recipes.toml")
