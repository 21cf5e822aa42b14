"""Names from elsewhere: they leave no folder, command no terminal, and are shown as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.app.recipes.toml import parse_recipe, write_recipe
from depl0.app.runs.progress import make_reporter
from depl0.app.table import markdown_grid
from depl0.errors import InputError
from tests.cli.conftest import Type, type_command
from tests.networks.tiny import tiny_recipe
from tests.support.runs import write_run

__all__ = ["type_command"]
CLEAR = "\x1b[2J"


@pytest.mark.parametrize("name", ["/tmp/x", "../../x", "a/b", "..", ".", r"a\\b", "C:x"])
def test_the_name_of_a_recipe_is_no_path(name: str) -> None:
    text = write_recipe(tiny_recipe()).replace(f'name = "{tiny_recipe().name}"', f'name = "{name}"', 1)
    with pytest.raises(InputError, match="recipe field name must be a name for a folder"):
        parse_recipe(text)


def test_no_name_of_a_folder_commands_the_terminal(
    type_command: Type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / f"run{CLEAR}")
    for words in ("report", "eval"):
        typed = type_command(f"{words} {run}")
        assert CLEAR not in typed.out + typed.err and "\\x1b[2J" in typed.out + typed.err
    make_reporter().note(f"opening {run}")
    assert CLEAR not in capsys.readouterr().err


def test_no_cell_ends_its_column() -> None:
    assert markdown_grid(["a"], [["b\\|c"]]).splitlines()[2] == "| b\\\\\\|c |"
