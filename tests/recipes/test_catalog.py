"""The recipes of the catalogue: names, variants, and the published penalty weights (more: test_published.py)."""

from __future__ import annotations

import pytest

from depl0.app.models import names as model_names
from depl0.app.recipes import describe, find, get, names, parse_recipe, write_recipe
from depl0.errors import InputError

VARIANTS = ("", "-backward", "-l0-hc")


def test_the_names():
    paper = ("vgg16-cifar10", "vgg16-cifar100", "resnet56-cifar10", "resnet56-cifar100", "resnet50-imagenet")
    others = ("digits", "custom", "lenet5-fashion-mnist", "lenet5-fashion-mnist-70", "resnet20-cifar10")
    literal = (base + source for base in paper for source in ("-paper", "-authors"))
    assert names() == tuple(base + variant for base in (*others, *paper, *literal) for variant in VARIANTS)


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
    assert recipe.name == name
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


def test_variants_change_the_gates_alone():
    plain, backward, independent = (get(f"resnet20-cifar10{variant}").gates for variant in VARIANTS)
    assert (plain.method, plain.groups, plain.budget) == ("reconstruction", "inner", 0.5)
    assert backward == plain.replace(method="dep-l0", direction="backward")
    assert independent == plain.replace(method="l0-hc", generator="independent")


def test_unknown_names():
    with pytest.raises(InputError, match=r"no recipe called 'vgg16-cifar'\.\nhint: did you mean vgg16-cifar10 or"):
        find("vgg16-cifar")


def test_find_takes_a_name_or_a_file(tmp_path, monkeypatch):
    assert find("digits-l0-hc") == get("digits-l0-hc")
    (tmp_path / "mine.toml").write_text(write_recipe(get("vgg16-cifar10")), encoding="utf-8")
    assert find(str(tmp_path / "mine.toml")) == get("vgg16-cifar10")
    monkeypatch.chdir(tmp_path)
    assert find("mine.toml") == get("vgg16-cifar10")
    with pytest.raises(InputError, match=r"recipe file other\.toml does not exist"):
        find("other.toml")
