"""``depl0 compare`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.recipes.toml import read_recipe
from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

TINY = (
    "--epochs 1 --finetune-epochs 0 --set data.limit_train=64 --device cpu --set search.dense_baseline=false --out out"
)


def test_a_comparison(type_command: Type, tmp_path: Path) -> None:
    words = f"compare digits --methods dep-l0:backward,l0-hc --seeds 2 --budget 0.5 {TINY}"
    typed = type_command(words)
    assert typed.code == 0, typed.err
    rows = [line.split() for line in typed.out.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in ("dep-l0:backward", "l0-hc")] == [
        ["dep-l0:backward", "2"],
        ["l0-hc", "2"],
    ]
    out = tmp_path / "out"
    result = json.loads((out / "comparison.json").read_text())
    runs = [out / "l0-hc" / f"seed-{seed}" for seed in (0, 1)]
    accuracies = [json.loads((run / "summary.json").read_text())["compact"]["accuracy"] for run in runs]
    assert result["methods"][1]["accuracy"]["mean"] == sum(accuracies) / 2
    assert [read_recipe(run / "recipe.toml").run.seed for run in runs] == [0, 1]
    assert "| dep-l0:backward | 2 |" in (out / "comparison.md").read_text()

    again = type_command(f"{words} --json")
    assert json.loads(again.out) == result
    assert again.err.count("finished already") == 4

    assert type_command("report out").code == 0
    page = (out / "report.html").read_text()
    assert "dep-l0:backward less l0-hc" in page and "Curves" in page and 'href="l0-hc/seed-1/report.html"' in page


def test_a_sweep_with_a_member_that_fails(type_command: Type, tmp_path: Path) -> None:
    words = f"compare digits --seeds 1 --budgets 0.0001,0.5,0.3 {TINY}"
    typed = type_command(words)
    assert typed.code == 1
    assert "1 of 3 members failed: dep-l0/budget-0.0001/seed-0" in typed.err and "Traceback" not in typed.err
    rows = {line.split()[1]: line.split() for line in typed.out.splitlines() if line.strip().startswith("dep-l0 ")}
    assert [rows[budget][2:3] for budget in ("0.5", "0.3")] == [["1"], ["1"]]
    assert rows["0.0001"][2:5] == ["0", "of", "1"]
    assert "a budget of 0.0001 of the macs is infeasible" in typed.out
    result = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000
    for row in result["methods"][:2]:
        assert row["macs_left"]["mean"] <= row["budget"]
    assert [member["status"] for member in result["members"]] == ["finished", "finished", "failed"]

    # members are ordinary runs
    found = json.loads(type_command("eval out/dep-l0/budget-0.5/seed-0 --json").out)
    assert found["accuracy"] == result["members"][0]["accuracy"]

    # a second call reads what is finished, and tries again what failed
    again = type_command(f"{words} --json")
    assert again.code == 1
    assert json.loads(again.out) == result
    assert "dep-l0/budget-0.5/seed-0 (1/3): finished already" in again.err

    # and another sweep is refused
    other = type_command(f"compare digits --seeds 1 --budgets 0.5,0.3 {TINY}")
    assert other.code == 2
    names = [f"dep-l0/budget-{budget}/seed-0" for budget in (0.5, 0.3, 0.0001)]
    assert f"its members are {', '.join(names)}; asked for: {', '.join(names[:2])}" in other.err
