"""The recipes of the catalogue: their names and variants, and the settings of the paper's appendix A.

Those that follow the paper or its authors' code have tests of their own (test_published.py).
"""

from __future__ import annotations

import re

import pytest

from depl0.app.models import names as model_names
from depl0.app.recipes import describe, find, get, names, parse_recipe, write_recipe
from depl0.errors import InputError

BASES = (
    "digits",
    "custom",
    "lenet5-fashion-mnist",
    "lenet5-fashion-mnist-70",
    "resnet20-cifar10",
    "vgg16-cifar10",
    "vgg16-cifar100",
    "resnet56-cifar10",
    "resnet56-cifar100",
    "resnet50-imagenet",
)
PAPER = BASES[5:]
VARIANTS = ("", "-backward", "-l0-hc")
LITERAL = tuple(
    f"{base}-{source}{variant}"
    for base in PAPER
    for source in ("paper", "authors")
    for variant in ("", "-backward", "-l0-hc")
)


def test_the_names():
    assert names() == (*(base + variant for base in BASES for variant in VARIANTS), *LITERAL)
    assert all(get(name).name == name for name in names())


@pytest.mark.parametrize(
    ("base", "weights", "authors"),
    [
        ("vgg16-cifar10", (1e-6, 1e-6, 5e-7), "chain"),
        ("vgg16-cifar100", (1e-6, 1e-6, 5e-7), "chain"),
        ("resnet56-cifar10", (5e-7, 1e-6, 5e-7), "chain"),
        ("resnet56-cifar100", (5e-7, 1e-6, 5e-7), "chain"),
        ("resnet50-imagenet", (5e-9, 5e-9, 5e-9), "groups-k2"),
    ],
)
def test_the_published_penalty_weights(base, weights, authors):
    for source, kind in (("", "params"), ("-paper", "groups"), ("-authors", authors)):
        recipes = [get(base + source + variant) for variant in VARIANTS]
        assert tuple(recipe.penalty.weight for recipe in recipes) == weights
        assert {(recipe.penalty.kind, recipe.gates.budget) for recipe in recipes} == {(kind, None)}


@pytest.mark.parametrize("name", names())
def test_every_recipe_is_complete(name):
    recipe = get(name)
    assert parse_recipe(write_recipe(recipe)) == recipe
    assert recipe.model.spec in model_names()
    line = describe(name)
    assert "\n" not in line and len(line) <= 120
    assert f" {recipe.search.epochs} " in line


def test_describe():
    assert " Channels by reconstruction, 3 + 9 epochs," in describe("resnet20-cifar10")
    assert describe("digits").endswith(" epochs, budget 25% of macs.")
    assert (
        describe("resnet50-imagenet-backward")
        == "ResNet-50 on ImageNet on the paper's schedule, cut while trained. Dep-L0 backward, 90 + 10 epochs, "
        "λ = 5e-09 on params."
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vgg16-cifar", "did you mean vgg16-cifar10 or vgg16-cifar100"),
        ("", "depl0 recipes lists them."),
    ],
)
def test_unknown_names(name, hint):
    with pytest.raises(InputError, match=re.escape(f"there is no recipe called {name!r}.\nhint: {hint}")):
        find(name)


def test_find_takes_a_name_or_a_file(tmp_path, monkeypatch):
    assert find("digits-l0-hc") == get("digits-l0-hc")
    (tmp_path / "mine.toml").write_text(write_recipe(get("vgg16-cifar10")), encoding="utf-8")
    assert find(str(tmp_path / "mine.toml")) == get("vgg16-cifar10")
    monkeypatch.chdir(tmp_path)
    assert find("mine.toml") == get("vgg16-cifar10")
    with pytest.raises(InputError, match=r"recipe file other\.toml does not exist"):
        find("other.toml")
    with pytest.raises(InputError, match=r"recipe file \./mine does not exist"):
        find("./mine")
