"""The recipes hold the settings of the paper's appendix A, written out here a second time.

Those that follow the paper or its authors' code have tests of their own (test_published.py).
"""

from __future__ import annotations

import re

import pytest

from depl0.app.models import names as model_names
from depl0.app.recipes import describe, find, get, names, parse_recipe, write_recipe
from depl0.errors import InputError
from depl0.gates.generators import PRESETS

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
CIFAR = PAPER[:4]
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


@pytest.mark.parametrize("base", BASES)
def test_the_variants_differ_in_the_gates_and_the_penalty_weight_only(base):
    forward, backward, l0hc = (get(base + variant) for variant in VARIANTS)
    method = "reconstruction" if base == "resnet20-cifar10" else "dep-l0"
    assert (forward.gates.method, forward.gates.generator, forward.gates.direction) == (method, "fc", "forward")
    assert (backward.gates.method, backward.gates.generator, backward.gates.direction) == ("dep-l0", "fc", "backward")
    assert (l0hc.gates.method, l0hc.gates.generator, l0hc.gates.direction) == ("l0-hc", "independent", "forward")
    for other in (backward, l0hc):
        gates = other.gates.replace(method=method, generator="fc", direction="forward")
        assert other.replace(name=base, gates=gates, penalty=forward.penalty) == forward


@pytest.mark.parametrize(
    ("name", "penalty_weight"),
    [
        ("vgg16-cifar10", 1e-6),
        ("vgg16-cifar10-backward", 1e-6),
        ("vgg16-cifar10-l0-hc", 5e-7),
        ("vgg16-cifar100", 1e-6),
        ("vgg16-cifar100-backward", 1e-6),
        ("vgg16-cifar100-l0-hc", 5e-7),
        ("resnet56-cifar10", 5e-7),
        ("resnet56-cifar10-backward", 1e-6),
        ("resnet56-cifar10-l0-hc", 5e-7),
        ("resnet56-cifar100", 5e-7),
        ("resnet56-cifar100-backward", 1e-6),
        ("resnet56-cifar100-l0-hc", 5e-7),
        ("resnet50-imagenet", 5e-9),
        ("resnet50-imagenet-backward", 5e-9),
        ("resnet50-imagenet-l0-hc", 5e-9),
    ],
)
def test_the_published_penalty_weights(name, penalty_weight):
    recipe = get(name)
    assert (recipe.penalty.weight, recipe.penalty.kind, recipe.gates.budget) == (penalty_weight, "params", None)


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize(
    ("model", "lr", "factor", "groups"), [("vgg16", 0.05, 0.2, "all"), ("resnet56", 0.1, 0.1, "inner")]
)
def test_vgg16_and_resnet56_on_cifar(model, lr, factor, groups, data):
    r = get(f"{model}-{data}")
    assert (r.model.spec, r.model.weights) == (model, "")
    assert (r.search.epochs, r.finetune.epochs, r.data.batch_size) == (300, 0, 128)
    assert r.weight_optimizer.model_dump() == {
        "lr": lr,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0005,
        "schedule": "step",
        "milestones": (60, 120, 180, 240),
        "factor": factor,
        "warmup_epochs": 0.0,
    }
    assert r.gate_optimizer.model_dump() == {
        "lr": 0.001,
        "schedule": "step",
        "milestones": (60, 120, 180, 240),
        "factor": 0.2,
        "betas": (0.9, 0.999),
    }
    assert r.gates.groups == groups


def test_resnet50_on_imagenet():
    r = get("resnet50-imagenet")
    assert (r.model.spec, r.model.weights) == ("resnet50", "")
    assert (r.search.epochs, r.data.batch_size, r.data.image_size, r.data.augment) == (90, 256, 224, "imagenet")
    assert (r.data.mean, r.data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert r.weight_optimizer.model_dump() == {
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0001,
        "schedule": "step",
        "milestones": (30, 60),
        "factor": 0.1,
        "warmup_epochs": 0.0,
    }
    assert r.gate_optimizer.model_dump() == {
        "lr": 0.001,
        "schedule": "step",
        "milestones": (30, 60),
        "factor": 0.2,
        "betas": (0.9, 0.999),
    }
    assert r.gates.groups == "inner"
    # Ten epochs with frozen gates; a step falls on epoch 90, so the rate is 0.1 · 0.1³ then, to the end.
    assert (r.finetune.epochs, r.finetune.gated, r.finetune.schedule) == (10, True, "constant")
    assert r.finetune_lr == pytest.approx(0.1 * 0.1**3)
    assert r.finetune_weight_decay == 0.0001


@pytest.mark.parametrize("base", PAPER)
def test_what_all_recipes_of_the_paper_share(base):
    for variant in VARIANTS:
        r = get(base + variant)
        assert (r.gates.preset, r.gates.start, r.gates.evaluation) == ("paper", None, "paper")
        assert (r.search.warmup, r.search.label_smoothing, r.search.clip_norm, r.search.ema_decay) == (
            0,
            0,
            None,
            None,
        )
        assert (r.run.seed, r.run.precision, r.data.limit_train) == (0, "fp32", 0)
    preset = PRESETS["paper"]
    assert (preset.bound, preset.bias_mean, preset.bias_std) == (10.0, 3.0, 0.01)


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_images(name):
    r = get(name)
    assert (r.data.augment, r.data.crop_padding) == ("crop-flip", 4)
    if name.endswith("100"):
        assert r.data.spec.startswith("cifar100:")
        assert (r.data.mean, r.data.std) == ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    else:
        assert r.data.spec.startswith("cifar10:")
        assert (r.data.mean, r.data.std) == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def test_digits():
    r = get("digits")
    assert (r.model.spec, r.data.spec) == ("small_cnn", "digits")
    assert (r.gates.budget, r.gates.of) == (0.25, "macs")
    assert (r.gates.generator, r.gates.preset, r.gates.groups) == ("fc", "default", "all")


def test_resnet20_from_trained_weights():
    r = get("resnet20-cifar10")
    assert (r.model.spec, r.gates.budget, r.gates.of) == ("resnet20", 0.5, "macs")
    assert r.search.epochs + r.finetune.epochs == 12
    assert (r.data.batch_size, r.data.augment, r.gates.preset) == (128, "crop-flip", "default")
    assert (r.data.mean, r.data.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
    assert " Dep-L0 backward, 3 + 9 epochs," in describe("resnet20-cifar10-backward")
    assert describe("digits").startswith("A small network on the embedded digits. Dep-L0 forward, ")
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
        ("Digits", "did you mean digits"),
        ("transformer", "depl0 recipes lists them."),
        ("", "depl0 recipes lists them."),
    ],
)
@pytest.mark.parametrize("function", [get, describe, find])
def test_unknown_names(function, name, hint):
    with pytest.raises(InputError, match=re.escape(f"there is no recipe called {name!r}.\nhint: {hint}")):
        function(name)


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
