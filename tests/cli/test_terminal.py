"""What the terminal shows: help, hints, plans, recipes, limits and the last lines of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from depl0.app.cli.result import closing_line, result_table
from depl0.app.recipes import catalog
from depl0.app.recipes.toml import parse_recipe
from tests.cli.conftest import Type
from tests.support.summaries import a_summary

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

MAKE = f"{Path(__file__).parents[1] / 'networks' / 'golden.py'}:TinyDigits"
FOLDER = Path(__file__).parents[1] / "golden" / "v1" / "blocks"


def test_help_shows_whole_summaries_and_examples(type_command: Type) -> None:
    shown = type_command("--help").out
    own = [
        line for line in shown.splitlines() if re.match(r"  [a-z]+  +[A-Z]", line) and not line.startswith("  paper")
    ]
    assert len(own) >= 9 and not [line for line in own if line.endswith("...")]
    assert shown.count("\n    depl0 ") == 3 or shown.count("\n  depl0 ") == 3
    assert "https://" in shown
    assert type_command("help").out == shown
    assert type_command("help plan").out == type_command("plan --help").out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("plan resnet18", "hint: did you mean torchvision:resnet18?"),
        ("prune --model resnet20", "hint: pass --data "),
        ("prune model.pt", "hint: depl0 prune --model MODEL --weights model.pt --data DATA."),
    ],
)
def test_hints(words: str, hint: str, type_command: Type) -> None:
    typed = type_command(words)
    assert typed.code == 2 and hint in typed.err


def test_doctor_lists_versions_and_missing_packages(type_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    from depl0.app.cli import about

    monkeypatch.setattr(about, "EXTRAS", {"export": ("onnx", "no-such-package")})
    typed = type_command("doctor")
    assert typed.code == 0 and re.search(r"^torch +2\.", typed.out, re.MULTILINE)
    assert re.search(r"^missing: no-such-package; pip install .*\[export\]'$", typed.out, re.MULTILINE)


def test_limits_decide_the_exit_code(type_command: Type) -> None:
    words = f"eval {FOLDER} --model {MAKE} --data digits --device cpu"
    assert type_command(f"{words} --min-accuracy 0 --max-macs 1").code == 0
    typed = type_command(f"{words} --min-accuracy 1")
    assert typed.code == 1 and "below --min-accuracy 1" in typed.err and "accuracy" in typed.out
    typed = type_command(f"{words} --max-macs 0.01")
    assert typed.code == 1 and "above --max-macs 0.01" in typed.err


def test_the_last_line_of_a_run() -> None:
    summary = {
        "dense": {"macs": 400, "accuracy": 91.3},
        "compact": {"macs": 100, "accuracy": 91.0},
        "speedup": {"1": {"ratio": 1.24, "low": 1.2, "high": 1.3}},
    }
    shown = closing_line(summary, Path("runs/x"))
    assert shown == "4.0× fewer MACs · −0.30 points · 1.2× faster · saved to runs/x"
    summary["speedup"] = {"1": {"ratio": 1.01, "low": 0.9, "high": 1.1}}
    assert "faster" not in closing_line(summary, Path("runs/x"))


def test_the_table_of_a_run() -> None:
    speedup = {"1": {"ratio": 1.36, "low": 0.9, "high": 1.9}}
    summary = {**a_summary(0, 0.5), "speedup": speedup, "certificate": {"max_error": 0.0, "dtype": "float64"}}
    summary |= {
        "metric": {"name": "rmse", "unit": "mm", "higher_is_better": False},
        "dense": {"rmse": 0.5, "macs": 10, "params": 10, "latency_ms": 1.0},
        "compact": {"rmse": 0.4375, "macs": 5, "params": 5, "latency_ms": 1.0},
    }
    rows = [" ".join(line.split()) for line in result_table(summary, Path("run")).splitlines()]
    assert rows[1] == "RMSE 0.5 mm 0.4375 mm -0.0625 mm"
    assert rows[4] == "latency, batch 1 1.00 ms 1.00 ms no measurable difference (0.90 to 1.90)"


# -- plans and recipes -------------------------------------------------------------------------------------------------


def test_plan(type_command: Type) -> None:
    typed = type_command("plan resnet20 --groups inner")
    assert (typed.code, typed.err) == (0, "")
    assert "layer1.0.conv1" in typed.out and "why not" in typed.out
    assert typed.out.startswith("resnet20 on 3×32×32 images, 10 classes: 269,722 parameters, 40,551,040 MACs\n")
    assert "minimum reachable: " in typed.out and "a budget can go down to " in typed.out


def test_plan_as_json(type_command: Type) -> None:
    found = json.loads(type_command("plan small_cnn --channels 1 --image-size 8 --classes 3 --json").out)
    assert [group["name"] for group in found["groups"]] == ["conv1", "conv2", "conv3", "conv4"]
    assert found["input_shapes"] == [[1, 8, 8]] and found["macs"] > found["least_macs_count"] > 0


def test_plan_of_a_network_that_knows_its_classes(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def make(num_classes=7):\n"
        "    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), pool, nn.Linear(4, num_classes))\n"
        "def told(num_classes):\n"
        "    return make(num_classes)\n"
    )
    own = type_command(f"plan {tmp_path}/own.py:make --image-size 8x6")
    assert f"images: {4 * 28 + 7 * 5:,} parameters" in own.out
    assert ", 10 classes: " in type_command(f"plan {tmp_path}/own.py:told --image-size 8").out


def test_plan_of_images_too_small(type_command: Type) -> None:
    typed = type_command("plan vgg16 --image-size 8")
    assert typed.code == 2
    assert "does not run" in typed.err and "(1, 3, 8, 8)" in typed.err


def test_recipes(type_command: Type) -> None:
    typed = type_command("recipes --all")
    assert (typed.code, typed.err) == (0, "")
    assert [line.split()[0] for line in typed.out.splitlines()] == list(catalog.names())
    typed = type_command("recipes")
    assert len(typed.out.splitlines()) == 10 and typed.err == f"{len(catalog.names()) - 10} more: depl0 recipes --all\n"


def test_a_recipe_shown_reads_back(type_command: Type) -> None:
    assert parse_recipe(type_command("recipes show digits").out) == catalog.get("digits")
