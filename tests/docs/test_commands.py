"""Every command in the pages is one that the command line takes, and names a recipe that exists."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from depl0.app.cli.app import app
from depl0.app.recipes.catalog import names
from tests.support.pages import NAMES, commands

STANDS_FOR = {"S": "0", "N": "1", "M": "1"}
WITH_COMMANDS = [name for name in NAMES if any(commands(name))]


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the parameters that the command line makes of some words, without running the command."""
    command: Any = typer.main.get_command(app)
    path = ["depl0"]
    if words[1:2] == ["…"]:
        words[1] = "digits"
    words = [STANDS_FOR.get(word, word) for word in words if word not in ("…", "--debug")]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        path.append(words.pop(0))
    assert len(path) > 1, f"no such command: {words}"
    context = command.make_context(" ".join(path), words)
    return dict(context.params)


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_are_understood(name: str) -> None:
    for words in commands(name):
        try:
            found = parsed(list(words))
        except Exception as error:
            raise AssertionError(f"depl0 {' '.join(words)}: {error}") from error
        recipe = found.get("recipe")
        if isinstance(recipe, str) and ":" not in recipe and not recipe.endswith(".toml"):  # neither model nor file
            assert recipe in names(), f"depl0 {' '.join(words)}: there is no recipe {recipe!r}"


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed(["prune", "digits", "--bugdet", "0.5"])
    with pytest.raises(AssertionError, match="no such command"):
        parsed(["prone", "digits"])
