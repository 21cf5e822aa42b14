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
    for row, folder in zip(result["methods"], ("dep-l0-backward", "l0-hc"), strict=True):
        runs = [out / folder / f"seed-{seed}" for seed in (0, 1)]
        accuracies = [json.loads((run / "summary.json").read_text())["compact"]["accuracy"] for run in runs]
        assert row["accuracy"]["mean"] == sum(accuracies) / 2
        assert abs(row["accuracy"]["sd"] - abs(accuracies[0] - accuracies[1]) / 2**0.5) < 1e-9
        assert row["macs_left"]["mean"] <= 0.5
        recipes = [read_recipe(run / "recipe.toml") for run in runs]
        assert [recipe.run.seed for recipe in recipes] == [0, 1]
    assert "| dep-l0:backward | 2 |" in (out / "comparison.md").read_text()

    again = type_command(f"{words} --json")
    assert json.loads(again.out) == result
    assert again.err.count("finished already") == 4


def test_a_comparison_at_several_budgets(type_command: Type, tmp_path: Path) -> None:
    typed = type_command(f"compare digits --methods random,l1-norm --budgets 0.3,0.6 --seeds 2 {TINY}")
    assert typed.code == 0, typed.err
    out = tmp_path / "out"
    result = json.loads((out / "comparison.json").read_text())
    rows = [(row["budget"], row["method"], row["n"]) for row in result["methods"]]
    assert rows == [(0.6, "random", 2), (0.6, "l1-norm", 2), (0.3, "random", 2), (0.3, "l1-norm", 2)]
    assert all(row["macs_left"]["mean"] <= row["budget"] for row in result["methods"])
    assert read_recipe(out / "random" / "budget-0.3" / "seed-1" / "recipe.toml").gates.budget == 0.3
    assert "| l1-norm |    0.3 |" in (out / "comparison.md").read_text()
    assert (out / "comparison.png").stat().st_size > 10_000
    assert type_command("report out").code == 0
    page = (out / "report.html").read_text()
    assert "random less l1-norm" in page and "Curves" in page and 'href="random/budget-0.3/seed-1/' in page
    wrong = type_command(f"compare digits --methods random --budgets 0.3,2 {TINY}")
    assert wrong.code == 2
    assert "--budgets takes numbers above 0 and at most 1, separated by commas, got 2 instead." in wrong.err


def test_a_sweep_with_a_member_that_fails(type_command: Type, tmp_path: Path) -> None:
    words = f"compare digits --seeds 1 --budgets 0.0001,0.5,0.3 {TINY}"
    typed = type_command(words)
    assert typed.code == 1
    assert "1 of 3 members failed: dep-l0/budget-0.0001/seed-0" in typed.err and "Traceback" not in typed.err
    rows = {line.split()[1]: line.split() for line in typed.out.splitlines() if line.strip().startswith("dep-l0 ")}
    assert [rows[budget][2:3] for budget in ("0.5", "0.3")] == [["1"], ["1"]]
    assert rows["0.0001"][2:5] == ["0", "of", "1"]
    assert "a budget of 0.0001 of the macs is infeasible" in typed.out
    out = tmp_path / "out"
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
    again = type_command(f"{words} --json")
    assert again.code == 1
    assert json.loads(again.out) == result
    assert "dep-l0/budget-0.5/seed-0 (1/3): finished already" in again.err

    # and another sweep is refused
    other = type_command(f"compare digits --seeds 1 --budgets 0.5,0.3 {TINY}")
    assert other.code == 2
    names = [f"dep-l0/budget-{budget}/seed-0" for budget in (0.5, 0.3, 0.0001)]
    assert f"its members are {', '.join(names)}; asked for: {', '.join(names[:2])}" in other.err


def test_bad_input_leaves_nothing_behind(type_command: Type, tmp_path: Path) -> None:
    for words, error in {
        "compare digits --methods magic": "'magic'",
        "compare digits --budgets 0.5,much": "got 'much' in '0.5,much' instead",
        "compare digits --budgets 0": "got 0 instead",
        "compare digits --methods dep-l0 --seeds 0": "--seeds must be at least 1",
        "compare vgg16-cifar10 --methods dep-l0": "needs a budget",
    }.items():
        typed = type_command(f"{words} {TINY}")
        assert typed.code == 2
        assert error in typed.err
    assert list(tmp_path.iterdir()) == []
