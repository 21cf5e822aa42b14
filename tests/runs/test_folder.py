"""The folder of a run: which one is taken, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from depl0.app.recipes.toml import read_recipe, write_recipe
from depl0.app.runs import folder as run_folder
from depl0.app.runs.folder import RunFolder, default_folder, environment, open_run
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")


def test_a_new_run(tmp_path: Path) -> None:
    folder, goes_on = open_run(tmp_path / "a" / "b", tiny_recipe(), resume=False)
    assert not goes_on
    folder.begin(tiny_recipe())
    assert sorted(path.name for path in folder.path.iterdir()) == ["environment.json", "metrics.jsonl", "recipe.toml"]
    assert read_recipe(folder.path / "recipe.toml") == tiny_recipe()
    assert folder.summary() is None


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    reporter = Noisy()
    run(tiny_recipe(search__epochs=1, finetune__epochs=0), tmp_path / "new", reporter, resume=True)
    assert [note for note in reporter.notes if "holds no run yet" in note]


def test_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "tiny-2", "tiny-3"):
        folder, _ = open_run(default_folder("tiny", False), tiny_recipe(), resume=False)
        assert folder.path == Path("runs") / name
        folder.begin(tiny_recipe())
    folder, goes_on = open_run(default_folder("tiny", True), tiny_recipe(), resume=True)
    assert (folder.path, goes_on) == (Path("runs/tiny-3"), True)


def test_another_run_is_not_written_over(tmp_path: Path) -> None:
    RunFolder(tmp_path).begin(tiny_recipe())
    with pytest.raises(InputError, match="holds another run already") as caught:
        open_run(tmp_path, tiny_recipe(), resume=False)
    assert "--resume" in str(caught.value)


@pytest.mark.parametrize("resume", [False, True])
def test_other_files_are_not_written_over(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not empty and holds no run"):
        open_run(tmp_path, tiny_recipe(), resume=resume)


def test_a_run_that_was_killed_while_it_began_can_begin(tmp_path: Path) -> None:
    (tmp_path / ".recipe.toml.part").write_text("name = ")
    _, goes_on = open_run(tmp_path, tiny_recipe(), resume=True)
    assert not goes_on


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search__epochs": 4}, "search.epochs was 3 and is now 4"),
        ({"name": "other"}, "name was 'tiny' and is now 'other'"),
        ({"penalty__weight": 0.1}, "gates.budget was 0.5 and is now None"),
    ],
)
def test_another_recipe_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    RunFolder(tmp_path).begin(tiny_recipe())
    with pytest.raises(InputError, match=message):
        open_run(tmp_path, tiny_recipe(**change), resume=True)


def test_lines_of_steps_that_are_done_again_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(tiny_recipe())
    for number in range(2):
        folder.metrics.add({"epoch": number})
    text = folder.metrics.text()
    for number in range(2, 4):
        folder.metrics.add({"epoch": number})
    (tmp_path / "metrics.jsonl").open("a").write('{"epoch": 4, "lo')  # killed in the middle of a line
    folder.restore(write_recipe(tiny_recipe()), text, "")
    assert folder.metrics.read() == [{"epoch": 0}, {"epoch": 1}]
    folder.metrics.add({"epoch": 2})
    assert len(folder.metrics.read()) == 3


def test_environment_says_versions_and_machine() -> None:
    found = environment()
    json.dumps(found)
    assert {"depl0", "torch", "accelerate", "numpy"} <= set(found["packages"])
    assert found["machine"]["cores"] >= 1
    top = Path(run_folder.__file__).parents[3]
    head = subprocess.run(["git", "-C", top, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert found["commit"] == (head.stdout.strip() or None)
