"""``depl0 plan``, ``depl0 recipes`` and the help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.recipes import catalog
from depl0.app.recipes.toml import parse_recipe
from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]


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


@pytest.mark.parametrize("name", ["digits", "resnet50-imagenet-backward"])
def test_a_recipe_shown_reads_back(type_command: Type, name: str) -> None:
    assert parse_recipe(type_command(f"recipes show {name}").out) == catalog.get(name)


@pytest.mark.parametrize(
    "words",
    ["--help", "prune --help", "eval --help", "plan --help", "latency --help", "recipes --help"],
)
def test_help(type_command: Type, words: str) -> None:
    typed = type_command(words)
    assert (typed.code, typed.err) == (0, "")
    assert "Usage: depl0" in typed.out
