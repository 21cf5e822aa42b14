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
    wrong = type_command(f"compare digits --methods random --budgets 0.3,2 {TINY}")
    assert wrong.code == 2
    assert "--budgets takes numbers above 0 and at most 1, separated by commas, got 2 instead." in wrong.err


def test_a_choice_on_held_out_images(type_command: Type, tmp_path: Path) -> None:
    words = "compare digits --methods dep-l0,l1-norm --seeds 1 --choose weight_optimizer.lr=1e-9,0.05 --budget 0.5"
    typed = type_command(f"{words} {TINY}".replace("--epochs 1", "--epochs 4"))
    assert typed.code == 0, typed.err
    out = tmp_path / "out"
    choice = json.loads((out / "comparison.json").read_text())["choice"]
    assert (choice["field"], choice["chosen_by"]) == ("weight_optimizer.lr", "validation_accuracy")
    scores: dict[str, dict[str, float]] = {"dep-l0": {}, "l1-norm": {}}
    for member in choice["members"]:
        trial = out / "trials" / member["name"]
        found = json.loads((trial / "summary.json").read_text())["validation"]["compact"]["accuracy"]
        scores[member["method"]][member["value"]] = found
        recipe = read_recipe(trial / "recipe.toml")
        assert (recipe.data.validation, recipe.weight_optimizer.lr) == (0.1, float(member["value"]))
    assert choice["chosen"] == {method: max(of, key=of.__getitem__) for method, of in scores.items()}
    assert choice["chosen"]["dep-l0"] == "0.05"  # nothing is learned with the other
    final = read_recipe(out / "dep-l0" / "seed-0" / "recipe.toml")
    assert (final.weight_optimizer.lr, final.data.validation) == (0.05, 0)
    assert "weight_optimizer.lr was chosen from 1e-9, 0.05 on validation images" in typed.out
    assert "| dep-l0" in (out / "trials" / "trials.md").read_text()


def test_bad_input_leaves_nothing_behind(type_command: Type, tmp_path: Path) -> None:
    for words, error in {
        "compare digits --methods magic": "'magic'",
        "compare digits --methods dep-l0 --seeds 0": "--seeds must be at least 1",
        "compare vgg16-cifar10 --methods dep-l0": "needs a budget",
        "compare digits --methods dep-l0 --choose finetune.lr=0.1": "at least two different values",
        "compare digits --methods dep-l0 --choose finetune.rate=0.1,0.2": "no field or section finetune.rate",
    }.items():
        typed = type_command(f"{words} {TINY}")
        assert typed.code == 2
        assert error in typed.err
    assert list(tmp_path.iterdir()) == []
