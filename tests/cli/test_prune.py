"""``depl0 prune`` and ``depl0 eval`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import depl0
from depl0.app.models.spec import factory
from depl0.app.recipes.toml import read_recipe
from tests.cli.conftest import Type
from tests.support.layouts import write_cifar10

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SHORT = "prune digits --epochs 1 --finetune-epochs 1 --set data.limit_train=128 --device cpu"
NO_DENSE = "--set search.dense_baseline=false"


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


# -- what a run leaves behind ----------------------------------------------------------------------------------------


def test_a_whole_run(type_command: Type, tmp_path: Path) -> None:
    words = "prune digits --epochs 2 --finetune-epochs 1 --set data.limit_train=256 --device cpu --out run"
    typed = type_command(words)
    assert typed.code == 0, typed.err
    run = tmp_path / "run"

    # stdout is the result, stderr the log
    assert [line.split("  ")[0] for line in typed.out.splitlines()[1:5]] == [
        "accuracy", "MACs", "parameters", "latency, batch 1",
    ]  # fmt: skip
    assert "files in run" in typed.out
    *_, look, use, closing = typed.out.splitlines()
    assert (look, use) == ("look at it:  depl0 report run", "use it:      depl0 export run --to onnx")
    assert "fewer MACs" in closing and closing.endswith("saved to run")
    header = typed.err.splitlines()[2:8]
    assert [line.split()[0] for line in header] == ["network", "data", "device", "method", "folder", "plan"]
    assert header[5].endswith("12 steps of dense, 8 steps of search, 4 steps of finetune; cut to 0.25 of the MACs")
    assert [line[21:] for line in (run / "log.txt").read_text().splitlines()[:6]] == header
    for phase in ("dense 3/3", "search 2/2", "finetune 1/1", "gates frozen"):
        assert phase in typed.err and phase not in typed.out

    assert sorted(path.name for path in run.iterdir()) == [
        ".lock", "answers.json", "checkpoints", "compact", "environment.json", "gates.jsonl", "log.txt",
        "metrics.jsonl", "recipe.toml", "summary.json", "tensorboard",
    ]  # fmt: skip
    assert {"python", "packages", "commit", "machine"} <= set(json.loads((run / "environment.json").read_text()))
    assert sorted(path.name for path in (run / "compact").iterdir()) == ["compact.json", "compact.safetensors"]
    check_metrics([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])

    summary = summary_of(run)
    for size in ("dense", "compact"):
        assert {"accuracy", "macs", "params", "latency_ms"} <= set(summary[size])
    assert (summary["dense"]["macs"], summary["dense"]["params"]) == (1_493_632, 65_834)
    assert summary["compact"]["macs"] <= 0.25 * summary["dense"]["macs"]
    assert 0.24 < summary["budget_reached"] <= summary["budget"] == 0.25
    assert summary["certificate"]["max_error"] < 1e-9
    header = json.loads((run / "compact" / "compact.json").read_text())
    assert header["cost"]["compact"] == {key: summary["compact"][key] for key in ("params", "macs")}
    assert header["cost"]["dense"] == {key: summary["dense"][key] for key in ("params", "macs")}

    # the files alone give the same accuracy, to the last digit
    for evaluated in ("run", "run/compact", "run/compact --data digits --model small_cnn"):
        found = json.loads(type_command(f"eval {evaluated} --json").out)
        assert found["accuracy"] == summary["compact"]["accuracy"]
        assert (found["macs"], found["params"]) == (summary["compact"]["macs"], summary["compact"]["params"])
        assert found["images"] == 360

    again = type_command(f"{words} --resume")
    assert again.code == 0 and again.out == typed.out


def check_metrics(lines: list[dict[str, Any]]) -> None:
    events = [line for line in lines if "event" in line]
    assert [line["event"] for line in events].count("freezing") == 1
    lines = [line for line in lines if "event" not in line]
    phases = [(line["phase"], line["epoch"]) for line in lines]
    assert phases == [("dense", 1), ("dense", 2), ("dense", 3), ("search", 1), ("search", 2), ("finetune", 1)]
    assert [line["step"] for line in lines] == [4 * (number + 1) for number in range(6)]
    for line in lines:
        assert all(0 <= line[key] <= 100 for key in ("train_accuracy", "test_accuracy"))
    for line in lines[3:5]:
        assert isinstance(line["threshold"], float) and "lambda" not in line  # a budget has no multiplier
        assert line["kept"]["macs_share"] == pytest.approx(line["kept"]["macs"] / 1_493_632)  # of one image
    assert lines[4]["expected"]["macs_share"] == pytest.approx(0.25, abs=0.1)


def test_json_and_quiet(type_command: Type, tmp_path: Path) -> None:
    typed = type_command(f"{SHORT} {NO_DENSE} --json --quiet --seed 3")
    assert typed.code == 0, typed.err
    assert typed.err == ""
    assert json.loads(typed.out) == summary_of(tmp_path / "runs" / "digits")
    assert json.loads(typed.out)["seed"] == 3
    assert json.loads(typed.out)["dense"]["accuracy"] is None
    assert "not trained" in type_command(f"{SHORT} {NO_DENSE} --out run").out


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("--budget 0.4 --of params", {"gates.budget": 0.4, "gates.of": "params"}),
        ("--set penalty.weight=1e-6", {"gates.budget": None, "penalty.weight": 1e-6}),
    ],
)
def test_options(type_command: Type, tmp_path: Path, options: str, fields: dict[str, Any]) -> None:
    typed = type_command(f"{SHORT} {NO_DENSE} {options} --out run")
    assert typed.code == 0, typed.err
    recipe = read_recipe(tmp_path / "run" / "recipe.toml")
    for name, value in fields.items():
        section, field = name.split(".")
        assert getattr(getattr(recipe, section), field) == value
    summary = summary_of(tmp_path / "run")
    if recipe.gates.budget is not None:
        reached = summary["compact"][recipe.gates.of] / summary["dense"][recipe.gates.of]
        assert recipe.gates.budget - 0.02 < reached <= recipe.gates.budget
    assert summary["penalty_weight"] == recipe.penalty.weight
    assert json.loads(type_command("eval run --json").out)["accuracy"] == summary["compact"]["accuracy"]
    assert (tmp_path / "run" / "tensorboard").exists() == bool(recipe.run.trackers)


def test_a_recipe_of_ones_own(type_command: Type, tmp_path: Path) -> None:
    shown = type_command("recipes show digits-l0-hc")
    (tmp_path / "mine.toml").write_text(
        shown.out.replace("epochs = 25", "epochs = 1").replace("epochs = 20", "epochs = 0")
    )
    typed = type_command(f"prune mine.toml --set data.limit_train=128 --device cpu {NO_DENSE} --out run")
    assert typed.code == 0, typed.err
    recipe = read_recipe(tmp_path / "run" / "recipe.toml")
    assert (recipe.gates.method, recipe.search.epochs) == ("l0-hc", 1)


# -- networks --------------------------------------------------------------------------------------------------------

MY_NET = """
from torch import nn
def make(num_classes, in_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )
"""


def test_a_network_of_ones_own(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "my_net.py").write_text(MY_NET)
    typed = type_command(f"{SHORT} {NO_DENSE} --model my_net.py:make --budget 0.5 --out run")
    assert typed.code == 0, typed.err
    found = json.loads(type_command("eval run --json").out)
    assert found["accuracy"] == summary_of(tmp_path / "run")["compact"]["accuracy"]


def test_a_network_of_timm(type_command: Type, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "d", records=8)
    options = f"--epochs 1 --finetune-epochs 0 --batch-size 16 --device cpu {NO_DENSE}"
    typed = type_command(f"prune digits --data cifar10:d --model timm:test_resnet {options} --out run")
    assert typed.code == 0, typed.err
    assert summary_of(tmp_path / "run")["budget_reached"] <= 0.25
    assert type_command("eval run").code == 0


# -- weights ---------------------------------------------------------------------------------------------------------


def test_quick_recovers_without_labels(type_command: Type, tmp_path: Path) -> None:
    torch.manual_seed(5)
    save_file(factory("small_cnn", 10, 1, 8)().state_dict(), tmp_path / "w.safetensors")
    command = "prune digits --weights w.safetensors --quick --device cpu --set data.limit_train=128"
    command += " --set model.allow_chance=true"
    typed = type_command(f"{command} --set finetune.recover=3 --out run")
    assert typed.code == 0, typed.err
    assert "recovering from the dense network's answers: at most 3 steps" in typed.err
    assert "recovered in 3 steps" in typed.err or "recovered in 0 steps" in typed.err
    found = summary_of(tmp_path / "run")["agreement"]
    assert f"compact network ~ dense network: {found['equal']:.1%} equal answers, KL" in typed.out
    typed = type_command(f"{command} --set finetune.recover=0 --out cut")
    assert typed.code == 0 and "recover" not in typed.err and "equal answers" in typed.out, typed.err
    assert read_recipe(tmp_path / "cut" / "recipe.toml").finetune.recover == 0


def test_several_budgets_are_a_run_each(type_command: Type, tmp_path: Path) -> None:
    torch.manual_seed(5)
    save_file(factory("small_cnn", 10, 1, 8)().state_dict(), tmp_path / "w.safetensors")
    options = "digits --weights w.safetensors --quick --device cpu --set data.limit_train=128 --recover 2"
    options += " --set model.allow_chance=true"
    typed = type_command(f"compare {options} --budgets 0.3,0.6 --seeds 1 --out out")
    assert typed.code == 0, typed.err
    assert "latency, batch 1" in typed.out
    assert (tmp_path / "out" / "comparison.png").is_file()
    result = json.loads((tmp_path / "out" / "comparison.json").read_text())
    for row, budget in zip(result["methods"], ("0.6", "0.3"), strict=True):
        (folder,) = (tmp_path / "out" / "reconstruction" / f"budget-{budget}").iterdir()
        summary = summary_of(folder)
        assert row["accuracy"]["mean"] == summary["compact"]["accuracy"]
        assert row["latency_ms"]["mean"] == summary["compact"]["latency_ms"]
        assert row["macs_left"]["mean"] == summary["macs_left"] <= row["budget"]

    # each is the network of its own run
    assert type_command(f"prune {options} --budget 0.3 --out alone").code == 0
    first, second = (load_file(run / "compact/compact.safetensors") for run in (folder, tmp_path / "alone"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_trained_weights(type_command: Type, tmp_path: Path) -> None:
    torch.manual_seed(5)
    network = factory("small_cnn", 10, 1, 8)()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    typed = type_command(f"{SHORT} --weights w.safetensors --out stopped")
    assert typed.code == 2 and "the trained weights score" in typed.err and "model.allow_chance=true" in typed.err
    typed = type_command(f"{SHORT} --weights w.safetensors --set model.allow_chance=true --out run")
    assert typed.code == 0, typed.err
    assert "dense network: accuracy" in typed.err
    assert "dense 1/" not in typed.err  # not trained: it is there
    data = depl0.app.data.open_data("digits")
    network.eval()
    with torch.no_grad():
        correct = sum(int((network(x).argmax(1) == y).sum()) for x, y in data.test.epoch(0))
    assert summary_of(tmp_path / "run")["dense"]["accuracy"] == pytest.approx(100 * correct / 360)


def test_weights_that_do_not_fit(type_command: Type, tmp_path: Path) -> None:
    state = factory("small_cnn", 10, 1, 8)().state_dict()
    save_file({**state, "linear.bias": torch.ones(7)}, tmp_path / "w.safetensors")
    typed = type_command(f"{SHORT} --weights w.safetensors --out run")
    assert typed.code == 2
    assert "linear.bias: 7 in the file, 10 in the network" in typed.err
    assert not (tmp_path / "run").exists()
