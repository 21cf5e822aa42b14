"""Files of a run that are deleted, damaged or replaced while nobody looks: put right on ``--resume``, or said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.folder import Lines
from depl0.errors import FormatError
from tests.networks.tiny import Noisy, PowerCut, cut_power, run, tiny_recipe
from tests.support.resume import what_matters

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

RECIPE = tiny_recipe(run__checkpoint_minutes=0)
Damage = Callable[[Path], None]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_utf8(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] = 0xFF
    path.write_bytes(content)


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"phase": "search", "epoch": 99, "step": 99, "open": {}}\n')


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(RECIPE, folder)
    return folder


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed at step 8, two steps after its last checkpoint."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(PowerCut):
        run(RECIPE, folder, Noisy(at_step=8, act=cut_power))
    return folder


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


# -- metrics and gates -----------------------------------------------------------------------------------------------


def test_histories_are_brought_back(stopped: Path, whole: Path) -> None:
    cut_short(stopped / "metrics.jsonl")
    lengthened(stopped / "gates.jsonl")
    run(RECIPE, stopped, resume=True)
    assert what_matters(stopped) == what_matters(whole)


@pytest.mark.parametrize("file", ["metrics.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_said(stopped: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    a_folder(stopped / file)
    recipe = stopped.with_suffix(".toml")
    recipe.write_text(write_recipe(RECIPE))
    assert main(["prune", str(recipe), "--out", str(stopped), "--resume", "--quiet"]) in (1, 2)
    message = capsys.readouterr().err
    assert f"{stopped / file}" in message and "hint: move" in message
    assert "IsADirectoryError" not in message


# -- files of lines --------------------------------------------------------------------------------------------------


def lines_of(path: Path, count: int) -> Lines:
    lines = Lines(path)
    for number in range(count):
        lines.add({"number": number})
    return lines


def test_damaged_lines_are_named(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "a.jsonl", 3)
    no_utf8(lines.path)
    for ask in (lines.read, lines.text):
        with pytest.raises(FormatError, match=r"a\.jsonl cannot be used: .*utf-8"):
            ask()
    lines.path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(FormatError, match="line 2 is not a JSON object"):
        lines.read()
