"""Methods, generators and formats of the user's own: the files of docs/guides/own-code.md, from the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy
import pytest

from depl0.app import trust
from depl0.app.recipes import get, with_overrides, write_recipe
from depl0.app.recipes.toml import parse_recipe
from depl0.gates.generators import make_generator
from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "own-code.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))
SHORT = "--epochs 1 --finetune-epochs 0 --batch-size 24 --budget 0.5 --device cpu --quiet"
TINY = f"--model tests.networks.tiny:TinyNet --data tests.networks.tiny:make_data {SHORT}"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPL0_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trust, "_remembered", set())
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def test_a_method_of_ones_own(type_command: Type) -> None:
    shutil.copy(Path(__file__).parents[1] / "networks" / "tiny.py", "net.py")
    words = TINY.replace("tests.networks.tiny", "net.py") + " --method my_method.py:LargestWeight"
    done = type_command(f"prune {words} --out run")
    assert done.code == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["method"] == "my_method.py:LargestWeight" and summary["budget_reached"] <= 0.5
    for command in ("eval run --device cpu", "report run --out report", "export run --to my_format.py:Npz"):
        done = type_command(command)
        assert done.code == 0, done.err
    assert "my_method.py:LargestWeight" in next(Path("report").glob("*.html")).read_text()
    assert numpy.load("run.npz")["conv1.weight"].shape[0] < 6
    Path("run/summary.json").unlink()
    again = type_command(f"prune {words} --out run --resume")
    assert again.code == 0, again.err


def test_a_generator_of_ones_own(type_command: Type) -> None:
    done = type_command(f"prune {TINY} --set gates.generator=my_generator.py:GroupOffset --out run")
    assert done.code == 0, done.err
    assert 'generator = "my_generator.py:GroupOffset"' in Path("run/recipe.toml").read_text()
    generator = make_generator("my_generator.py:GroupOffset", [2, 3], start=1.5)
    assert generator().tolist() == [1.5] * 5


def test_both_beside_the_methods_of_depl0(type_command: Type, tmp_path: Path) -> None:
    own = f"{tmp_path}/my_method.py:LargestWeight"
    done = type_command(f"compare {TINY} --methods dep-l0:my_generator.py:GroupOffset,{own} --seeds 1 --out c")
    assert done.code == 0, done.err
    found = Path("c/comparison.json").read_text()
    names = [row["method"] for row in json.loads(found)["methods"]]
    assert names == ["dep-l0:my_generator.py:GroupOffset", "my_method.py:LargestWeight"]
    assert str(tmp_path) not in found
    assert Path("c/my_method-LargestWeight/seed-0/summary.json").is_file()
    done = type_command(f"compare {TINY} --methods my_method.py:LargestWeight,{own} --seeds 1 --out d")
    assert done.code == 2 and "would share the folder my_method-LargestWeight" in done.err


def test_a_missing_file_is_named_where_it_is_needed(type_command: Type, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "networks" / "tiny.py", tmp_path / "net.py")
    words = TINY.replace("tests.networks.tiny", "net.py") + " --method my_method.py:LargestWeight"
    assert type_command(f"prune {words} --out run").code == 0
    Path("my_method.py").unlink()
    assert type_command("eval run --device cpu").code == 0  # the method has done its work
    assert type_command("export run --to safetensors").code == 0
    assert type_command("report run").code == 0
    done = type_command(f"prune {words} --out other")
    assert (done.code, "needs the file my_method.py; found no file there" in done.err) == (2, True)
    Path("net.py").unlink()
    for command in ("eval run --device cpu", "export run --to safetensors"):
        done = type_command(command)
        assert (done.code, "needs the file net.py; found no file there" in done.err) == (2, True), done.err


def test_code_of_a_run_from_elsewhere_is_not_executed(type_command: Type, tmp_path: Path) -> None:
    assert type_command(f"prune {TINY} --method l1-norm --out run").code == 0
    Path("evil.py").write_text("raise SystemExit('executed')\n")
    recipe = with_overrides(parse_recipe(Path("run/recipe.toml").read_text()), {"gates.method": "evil.py:Evil"})
    Path("run/recipe.toml").write_text(write_recipe(recipe))
    for command in ("eval run --device cpu", "export run --to safetensors", "latency run"):
        done = type_command(command)
        assert done.code == 2 and f"its gates.method would run {tmp_path / 'evil.py'}" in done.err, done.err
    assert type_command("eval run --device cpu --trust-code").code == 0  # not needed, so not executed even then


SCORED = "from depl0.app.methods import Scored\nclass Mine(Scored):"
BROKEN = {
    "def Mine(): ...": "must be a class below depl0.app.methods.Method, got a function instead",
    f"{SCORED}\n def scores(self, *a): 1 / 0": "line 3: ZeroDivisionError",
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_wrong_with_a_method_is_said(type_command: Type, text: str) -> None:
    Path("mine.py").write_text(text)
    done = type_command(f"prune {TINY} --method mine.py:Mine --out run")
    assert done.code == 2 and BROKEN[text] in done.err and "Traceback" not in done.err, done.err


def test_reading_a_recipe_imports_nothing() -> None:
    recipe = with_overrides(get("digits"), {"gates.method": "nowhere.py:Mine", "gates.generator": "nowhere.py:Gen"})
    assert parse_recipe(write_recipe(recipe)) == recipe
