"""The scripts of ``reproduce/``: each runs, and verdicts follow their rules."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "reproduce"
SCRIPTS = [*sorted(file.name for file in FOLDER.glob("*_*.py")), "claims/first_gates.py"]
sys.path[:0] = [str(FOLDER / "claims")]

import verdict  # noqa: E402


def rows(arm: str, costs: tuple[float, ...], scores: tuple[float, ...] = (60.0, 60.2, 60.1)) -> list[Any]:
    return [
        {"arm": arm, "seed": seed, "macs_left": cost, "params_left": cost, "test": score + 10 * cost}
        for seed, score in enumerate(scores)
        for cost in costs
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("remembered_plans")
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    folder = [] if "claims" in script else [str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [script, *folder, "--smoke"])
    runpy.run_path(str(FOLDER / script), run_name="__main__")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("aper", "ResNet-56" if "claims" in script else "ours"))
    if "structure" in script:
        assert "<svg" in (tmp_path / f"{script.partition('_')[0]}.svg").read_text()


@pytest.mark.slow
def test_the_experiment_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "claims" / "run.py"), "--smoke"]
    variables = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "vgg-fc-const" in done.stdout and "settled_step" in done.stdout and "undecided" in done.stdout


def test_a_difference_at_equal_cost() -> None:
    found = verdict.at_fixed(rows("dep", (0.6, 0.42)), rows("l0-hc", (0.58, 0.4), (57.0, 57.1, 57.2)), 0.43)
    assert found is not None and found.n == 3 and found.mean == pytest.approx(3.0)
    assert found.high - found.mean == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)  # Student's t with 2 degrees
    assert verdict.verdict(found) == "better"
    swapped = verdict.at_fixed(rows("l0-hc", (0.58, 0.4), (57.0, 57.1, 57.2)), rows("dep", (0.6, 0.42)), 0.43)
    assert verdict.verdict(swapped) == "worse"
    over = verdict.over_common(rows("dep", (0.5, 0.4)), rows("l0-hc", (0.5, 0.4), (57.0, 57.1, 57.2)), "macs_left")
    assert over is not None and over.mean == pytest.approx(3.0)


def test_runs_more_than_15_points_apart_are_not_compared() -> None:
    dep, others = rows("dep", (0.6, 0.45)), (rows("l0-hc", (0.65, 0.5)), rows("l0-hc", (0.85, 0.3)))
    near, far = (verdict.over_common(dep, other, "macs_left") for other in others)
    assert near is not None and far is None


def test_the_page_of_the_published_runs(tmp_path: Path) -> None:
    published = FOLDER.parent / "benchmarks" / "results" / "verdict"
    lines = (published / "results.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [verdict.with_slope(verdict.json.loads(line)) for line in lines]
    text = verdict.write(runs, tmp_path, tmp_path / "verdict.svg")
    shown = (published / "README.md").read_text(encoding="utf-8")
    assert all(line in shown for line in text.splitlines() if line.startswith("|"))
