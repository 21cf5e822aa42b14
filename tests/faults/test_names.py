"""Names from elsewhere: they leave no folder, command no terminal, and are shown as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from depl0.app.deploy import export_folder, open_source
from depl0.app.deploy.source import Source
from depl0.app.recipes.toml import parse_recipe, write_recipe
from depl0.app.runs.progress import make_reporter
from depl0.app.table import markdown_grid
from depl0.errors import InputError
from tests.cli.conftest import Type, type_command
from tests.networks.tiny import tiny_recipe
from tests.support.runs import write_run

__all__ = ["type_command"]
GOLDEN = Path(__file__).parents[1] / "golden"
CLEAR = "\x1b[2J"
TINY = f"{Path(__file__).parents[1] / 'networks' / 'golden.py'}:TinyDigits"


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


def test_names_in_markdown_are_shown_as_they_are(tmp_path: Path) -> None:
    source = open_source(GOLDEN / "v1" / "channels", TINY)
    metadata = {**source.metadata, "depl0.class_names": '["<script>", "[a](b)", "*c*"]', "depl0.data": "<b>"}
    before = os.umask(0o027)
    try:
        done = export_folder(Source(**{**vars(source), "metadata": metadata}), tmp_path / "out", "<i>`x`")
    finally:
        os.umask(before)
    _, _, card = (done.path / "README.md").read_text().split("---\n", 2)
    assert "Classes, in order: &lt;script>, \\[a](b), \\*c\\*." in card
    assert "# &lt;i>\\`x\\`" in card and "<b>" not in card
    assert done.path.stat().st_mode & 0o777 == 0o750, "the user's umask"


def test_no_cell_ends_its_column() -> None:
    assert markdown_grid(["a"], [["b\\|c"]]).splitlines()[2] == "| b\\\\\\|c |"
