"""Every example runs as a script and keeps its budget."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
NEEDS = {
    "accelerate_loop": "accelerate",
    "lightning_trainer": "lightning",
    "huggingface_trainer": "transformers",
    "huggingface_generate": "transformers",
}
OF = {"regression": "parameters"}
WORST = {  # what a broken search falls short of, by far; accuracies in percent
    "own_loop": r"accuracy (?:9\d|100)",
    "accelerate_loop": r"accuracy (?:[89]\d|100)",
    "lightning_trainer": r"accuracy (?:9\d|100)",
    "huggingface_trainer": r"accuracy (?:9\d|100)",
    "huggingface_generate": r"compact: accuracy (?:9\d|100)",
    "segmentation": r"union 0\.9",
    "regression": r"mean error \d\.\d degrees",
    "audio_classification": r"accuracy (?:[89]\d|100)",
}


def run_script(script: Path, folder: Path) -> str:
    """Run a script in a process of its own; return what it printed."""
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "yolo"])  # test_ultralytics.py runs that one
def test_the_example_keeps_its_budget(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    script = ROOT / "examples" / f"{name}.py"
    if name in NEEDS:  # the order of its imports matters: nothing may have been imported before
        printed = run_script(script, tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out
    (budget,) = re.findall(r"^BUDGET = ([\d.]+)$", script.read_text(), re.MULTILINE)
    (left,) = re.findall(rf"left .*?([\d.]+)% of the {OF.get(name, 'MACs')}", printed)
    assert 0 < float(left) <= 100 * float(budget)
    assert re.search(WORST[name], printed), printed
    assert not list(tmp_path.iterdir())


def test_the_table_lists_every_example() -> None:
    table = (ROOT / "examples" / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)\.py\)", table)) == EXAMPLES


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.ipynb")))
def test_the_notebook_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its code cells run one after the other, without a notebook server; no output is kept in the file."""
    if find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
    known: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), f"{name}[{number}]", "exec"), known)
    printed = capsys.readouterr().out
    assert re.search(r"dense: 9\d\.\d %", printed) and re.search(r"compact: 9\d\.\d %", printed)
    assert printed.rstrip().endswith("True")
