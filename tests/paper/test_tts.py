"""Time to solution: members that run one after another, go on after an interruption, and end in a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.cli.app import main
from depl0.app.recipes.toml import with_overrides
from depl0.errors import InputError
from depl0.paper import tts
from tests.networks.tiny import tiny_recipe
from tests.support.tts import figures

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

QUICK = [
    "--recipe",
    "digits",
    "--model",
    "small_cnn",
    "--data",
    "digits",
    "--limit-train",
    "128",
    "--only",
    "dense",
    "--only",
    "never",
]
QUICK += ["--epochs", "2", "--finetune-epochs", "1", "--threads", "1"]


def test_the_command_runs_its_members_and_does_none_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tts"
    assert main(["paper", "tts", *QUICK, "--out", str(out)]) == 0
    table = capsys.readouterr().out
    result = json.loads((out / "tts.json").read_text())
    assert (out / "tts.md").read_text() == table
    assert [row["member"] for row in result["runs"]] == ["dense", "never"]
    for row in result["runs"]:
        assert row["epochs"] == 3
        assert row["seconds"] > 0
        assert row["cpu_seconds"] > 0
        assert row["channels_last"] is True
        assert f"| {row['member']} " in table
    assert result["runs"][0]["macs_left"] == 1
    assert all(0.4 < row["macs_left"] <= 0.5 for row in result["runs"][1:])
    (out / "never-0" / "summary.json").unlink()  # as if it had been stopped before its end
    assert main(["paper", "tts", *QUICK, "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    again = json.loads(printed.out)
    assert printed.err.count("finished before") == 1
    assert "never-0: begins" in printed.err
    assert again["runs"][0] == result["runs"][0]
    assert [len(row["attempts"]) for row in again["runs"]] == [1, 2]
    assert main(["paper", "tts", *QUICK, "--out", str(out), "--only", "dens"]) == 2
    assert "there is no member called 'dens'" in capsys.readouterr().err
    assert main(["paper", "tts", *QUICK, "--out", str(out), "--budget", "0.3"]) == 2
    assert "holds a run with other settings" in capsys.readouterr().err


def test_members_differ_in_what_they_are_about_only() -> None:
    base = tiny_recipe()
    recipes = [tts.recipe_of(base, member, 3) for member in tts.ALL]
    assert len({recipe.name for recipe in recipes}) == len(recipes) == 6
    for recipe in recipes:
        assert (recipe.run.seed, recipe.run.channels_last) == (3, "on")
        search = with_overrides(recipe, {"search.cut": recipes[0].search.cut}).search
        assert (search, recipe.finetune, recipe.data) == (recipes[0].search, base.finetune, base.data)
    assert [recipe.gates.generator for recipe in recipes[-2:]] == ["independent", "fc"]
    assert recipes[-1].gates.direction == "backward"


def test_the_tables_say_what_the_runs_say() -> None:
    runs = [figures(member.name, 100.0 + 10 * place, 4.0) for place, member in enumerate(tts.ALL)]
    runs += [figures(member.name, 120.0 + 10 * place, None, seed=1) for place, member in enumerate(tts.ALL)]
    result = {"model": "resnet20", "data": "cifar10:DIR", "limit_train": 5000, "batch": 128, "epochs": 10,
              "budget": 0.5, "seeds": [0, 1], "runs": runs}  # fmt: skip
    text = tts.tts_table(result)
    assert "resnet20 on 5,000 images of cifar10, batch 128, 10 epochs, budget 50% of the MACs, 2 seeds" in text
    (progressive,) = [line for line in text.splitlines() if line.startswith("| progressive")]
    cells = [cell.strip() for cell in progressive.strip("|").split("|")]
    assert cells[:5] == ["progressive", "140", "14", "1.275 (1.250–1.300)", "1.168 (1.154–1.182)"]
    assert "take at least 3 pairs" in text
    (pair,) = [
        each for each in tts.all_pairs(runs)
        if (each["member"], each["of"], each["figure"]) == ("progressive", "dense", "seconds")
    ]  # fmt: skip
    assert pair["median"] == pytest.approx((130 / 100 + 150 / 120) / 2) and pair["n"] == 2
    (l0hc,) = [line for line in text.splitlines() if line.startswith("| L0-HC")]
    assert [cell.strip() for cell in l0hc.strip("|").split("|")][1:7] == [
        "10", "4.0 (1 of 2)", "5.5", "3.2", "150", "1.000",
    ]  # fmt: skip
    (backward,) = [line for line in text.splitlines() if line.startswith("| Dep-L0 backward")]
    assert [cell.strip() for cell in backward.strip("|").split("|")][6] == "1.067 (1.062–1.071)"  # 150/140, 170/160
    never = [{**row, "epochs_before_convergence": None} for row in runs]
    assert " never |" in tts.tts_table({**result, "runs": never}).split("| L0-HC")[1].splitlines()[0]


def test_members_take_turns_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(tts, "_run", lambda member, recipe, folder, threads, note: ran.append(folder.name))
    monkeypatch.setattr(tts, "measured", lambda name, seed, folder: figures(name, 100.0 + seed, None, seed))
    members = tts.find_members(["dense", "never", "progressive"])
    result = tts.bench_tts(tiny_recipe(), tmp_path, seeds=(0, 1, 2), chosen=members)
    assert ran == [
        "dense-0", "never-0", "progressive-0", "progressive-1", "never-1", "dense-1", "dense-2", "never-2",
        "progressive-2",
    ]  # fmt: skip
    assert {pair["n"] for pair in result["pairs"]} == {3}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        tts.bench_tts(tiny_recipe(), tmp_path / "file")
