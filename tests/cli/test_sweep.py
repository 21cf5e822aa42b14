"""``depl0 compare --budgets`` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

TINY = "--epochs 1 --finetune-epochs 0 --set data.limit_train=128 --device cpu --set search.dense_baseline=false"


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_sweep_with_a_member_that_fails(type_command: Type, tmp_path: Path) -> None:
    words = f"compare digits --seeds 1 --budgets 0.0001,0.5,0.3 {TINY} --out out"
    typed = type_command(words)
    assert typed.code == 1
    assert "1 of 3 members failed: dep-l0/budget-0.0001/seed-0" in typed.err and "Traceback" not in typed.err
    rows = {line.split()[1]: line.split() for line in typed.out.splitlines() if line.strip().startswith("dep-l0 ")}
    assert [rows[budget][2:3] for budget in ("0.5", "0.3")] == [["1"], ["1"]]
    assert rows["0.0001"][2:5] == ["0", "of", "1"]
    assert "a budget of 0.0001 of the macs is infeasible" in typed.out
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "comparison.json", "comparison.md", "comparison.png", "comparison.svg", "dep-l0", "study.json",
    ]  # fmt: skip
    result = json.loads((out / "comparison.json").read_text())
    for member in result["members"][:2]:
        summary = json.loads((out / member["name"] / "summary.json").read_text())
        assert member["accuracy"] == summary["compact"]["accuracy"]
        assert member["macs_left"] == summary["macs_left"]
    for row in result["methods"][:2]:
        assert row["macs_left"]["mean"] <= row["budget"]
    assert [member["status"] for member in result["members"]] == ["finished", "finished", "failed"]

    # members are ordinary runs
    found = json.loads(type_command("eval out/dep-l0/budget-0.5/seed-0 --json").out)
    assert found["accuracy"] == result["members"][0]["accuracy"]

    # a second call reads what is finished, and tries again what failed
    before = contents(out / "dep-l0" / "budget-0.5")
    again = type_command(f"{words} --json")
    assert again.code == 1
    assert json.loads(again.out) == result
    assert "dep-l0/budget-0.5/seed-0 (1/3): finished already" in again.err
    assert contents(out / "dep-l0" / "budget-0.5") == before

    # and another sweep is refused
    other = type_command(f"compare digits --seeds 1 --budgets 0.5,0.3 {TINY} --out out")
    assert other.code == 2
    names = [f"dep-l0/budget-{budget}/seed-0" for budget in (0.5, 0.3, 0.0001)]
    assert f"its members are {', '.join(names)}; asked for: {', '.join(names[:2])}" in other.err


WAITS = """
import time
from pathlib import Path
from depl0.app.models.small_cnn import SmallCNN

SECOND = Path("out/dep-l0/budget-0.3/seed-0/recipe.toml")

class Waits(SmallCNN):
    def forward(self, x):
        while self.training and SECOND.exists() and not Path("killed").exists():
            time.sleep(0.02)
        return super().forward(x)

def make():
    return Waits(10, 1)
"""


def test_a_sweep_that_was_killed_goes_on(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)  # its second member does not end before it is killed
    words = f"compare digits --model waits.py:make --seeds 1 --budgets 0.5,0.3 {TINY} --out out"
    process = subprocess.Popen(
        [sys.executable, "-m", "depl0", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    first, second = (tmp_path / "out" / "dep-l0" / f"budget-{budget}" / "seed-0" for budget in (0.5, 0.3))
    deadline = time.monotonic() + 600
    while not (second / "recipe.toml").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "killed").touch()
    assert (first / "summary.json").exists() and not (second / "summary.json").exists()
    before = contents(first)
    half = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [member["status"] for member in half["members"]] == ["finished", "not started"]

    typed = type_command(words)
    assert typed.code == 0, typed.err
    assert contents(first) == before
    whole = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [member["status"] for member in whole["members"]] == ["finished", "finished"]


def test_bad_input_leaves_nothing_behind(type_command: Type, tmp_path: Path) -> None:
    for words, error in {
        "compare digits --seeds 1 --budgets 0.5,much": "got 'much' in '0.5,much' instead",
        "compare digits --budgets 0": "got 0 instead",
        "compare digit --budgets 0.5": "did you mean digits",
    }.items():
        typed = type_command(f"{words} --out out")
        assert typed.code == 2
        assert error in typed.err
        assert typed.out == ""
    assert list(tmp_path.iterdir()) == []
