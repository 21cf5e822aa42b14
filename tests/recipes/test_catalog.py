"""The recipes of the catalogue: names, variants, and the settings of the paper and its authors, typed a second time."""

from __future__ import annotations

import math

import pytest
import torch

import depl0
from depl0.app.models import build
from depl0.app.models import names as model_names
from depl0.app.recipes import Recipe, describe, find, get, names, parse_recipe, write_recipe
from depl0.app.training.setup import gate_config
from depl0.errors import InputError
from depl0.gates.generators import PRESETS

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
        ("resnet56-cifar10", (5e-7, 1e-6, 5e-7), "chain"),
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
    assert " reconstruction, 3 + 9 epochs." in describe("resnet20-cifar10")
    assert (
        describe("resnet50-imagenet-backward")
        == "ResNet-50 on ImageNet on the paper's schedule, cut while trained. dep-l0, 90 + 10 epochs."
    )


def test_find_takes_a_name_or_a_file(tmp_path, monkeypatch):
    assert find("digits-l0-hc") == get("digits-l0-hc")
    (tmp_path / "mine.toml").write_text(write_recipe(get("vgg16-cifar10")), encoding="utf-8")
    assert find(str(tmp_path / "mine.toml")) == get("vgg16-cifar10")
    monkeypatch.chdir(tmp_path)
    assert find("mine.toml") == get("vgg16-cifar10")
    with pytest.raises(InputError, match=r"recipe file other\.toml does not exist"):
        find("other.toml")


# -- the paper and its authors' code -----------------------------------------------------------------------------------

SOURCES = ("paper", "authors")
BASES = ("vgg16-cifar10", "resnet56-cifar100", "resnet50-imagenet")


def rates(recipe: Recipe) -> tuple[object, ...]:
    """Give both learning rates: the first one, the epochs at which it changes, and the factor."""
    weight, gate = recipe.weight_optimizer, recipe.gate_optimizer
    assert weight.schedule == "step"
    changes = (gate.milestones, gate.factor) if gate.schedule == "step" else None
    return weight.lr, weight.milestones, weight.factor, gate.lr, changes


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("source", SOURCES)
def test_what_all_of_them_share(base: str, source: str) -> None:
    for variant in VARIANTS:
        r = get(f"{base}-{source}{variant}")
        assert (r.search.cut, r.search.renew_statistics, r.search.compensate) == ("never", False, False)
        assert r.distill.weight == 0
        assert (r.gates.evaluation, r.gates.start) == ("paper", None)
        assert r.gates.draw == ("image" if "-authors" in r.name else "batch")
        assert (r.gates.preset == "reference-vgg16") is (r.name.startswith("vgg16") and "-authors" in r.name)
        assert (r.gates.budget, r.penalty.scale, r.gates.remove_blocks) == (None, "count", False)
        assert (r.search.warmup, r.search.clip_norm) == (0, None)
        weights = r.weight_optimizer
        assert (weights.momentum, weights.nesterov, weights.warmup_epochs) == (0.9, False, 0)
        assert r.gate_optimizer.lr == 1e-3
        assert (r.gates.preset.removesuffix("-vgg16"), PRESETS[r.gates.preset].bound) == (
            ("paper", 10.0) if source == "paper" else ("reference", math.log(100))
        )
        preset = PRESETS[r.gates.preset]
        assert (preset.bias_mean, preset.bias_std, preset.start, preset.initial_weight) == (3.0, 0.01, None, None)
        assert (preset.feed, preset.mean_input, preset.carry_gradient) == ("log_alpha", False, 1.0)


def test_vgg16() -> None:
    paper, authors = (get(f"vgg16-cifar10-{source}") for source in SOURCES)
    for r, epochs in ((paper, 300), (authors, 299)):
        assert (r.model.spec, r.gates.groups, r.gates.alone) == ("vgg16_dep_l0", "all", ())
        assert (r.search.epochs, r.finetune.epochs, r.data.batch_size) == (epochs, 0, 128)
        assert r.weight_optimizer.weight_decay == 5e-4
    every_60 = (60, 120, 180, 240)
    assert rates(paper) == (0.05, every_60, 0.2, 1e-3, (every_60, 0.2))
    assert rates(authors) == (0.05, every_60, 0.2, 1e-3, None)  # their scheduler is bound to the other optimizer


def test_resnet56() -> None:
    paper, authors = (get(f"resnet56-cifar10-{source}") for source in SOURCES)
    for r, model, epochs in ((paper, "resnet56_dep_l0", 300), (authors, "resnet56_b_dep_l0", 299)):
        assert (r.model.spec, r.gates.groups, r.gates.alone) == (model, "inner", ("conv1",))
        assert (r.search.epochs, r.finetune.epochs, r.data.batch_size) == (epochs, 0, 128)
        assert r.weight_optimizer.weight_decay == 5e-4
    every_60 = (60, 120, 180, 240)
    assert rates(paper) == (0.1, every_60, 0.1, 1e-3, (every_60, 0.2))
    earlier = (59, 119, 179, 239)
    assert rates(authors) == (0.1, earlier, 0.1, 1e-3, (earlier, 0.1))


def test_resnet50() -> None:
    paper, authors = (get(f"resnet50-imagenet-{source}") for source in SOURCES)
    for r in (paper, authors):
        assert (r.model.spec, r.gates.groups, r.gates.alone) == ("resnet50_dep_l0", "inner", ())
        assert (r.search.epochs, r.data.batch_size, r.weight_optimizer.weight_decay) == (90, 256, 1e-4)
        assert (r.finetune.epochs, r.finetune.gated) == (10, True)
    assert rates(paper) == (0.1, (30, 60), 0.1, 1e-3, ((30, 60), 0.2))
    assert rates(authors) == (0.1, (31, 61), 0.1, 1e-3, ((31, 61), 0.2))
    # A step falls on epoch 90, where fine-tuning starts; in the authors' code, on epoch 91.
    assert (paper.finetune_lr, paper.finetune.schedule) == (1e-4, "constant")
    assert (authors.finetune_lr, authors.finetune.schedule) == (1e-3, "step")
    assert (authors.finetune.milestones, authors.finetune.factor) == ((1,), 0.1)


def gated_layers(name: str, images: torch.Tensor) -> list[tuple[str, int]]:
    recipe = get(name)
    config = gate_config(recipe)
    plan = depl0.plan(build(recipe.model.spec), images, groups=config.groups, alone=config.alone)
    return [(group.name, group.size) for group in plan.groups]


def test_resnet56_has_28_gated_layers() -> None:
    """The paper counts "5 out of 28 layers" (section 4.4): the first convolution, and that of each of 27 blocks."""
    layers = gated_layers("resnet56-cifar10-paper", torch.zeros(1, 3, 32, 32))
    widths = [16] * 9 + [32] * 9 + [64] * 9
    blocks = [f"layer{1 + block // 9}.{block % 9}.conv1" for block in range(27)]
    assert layers == [("conv1", 16), *zip(blocks, widths, strict=True)]
    inputs = [3, *[16] * 10, *[32] * 9, *[64] * 8]
    weights = [9 * into * size for into, (_, size) in zip(inputs, layers, strict=True)]
    assert (weights[0], sum(weights)) == (432, 412_848)  # as docs/paper.md has it


def test_vgg16_has_4224_filters_in_13_layers() -> None:
    layers = gated_layers("vgg16-cifar10-paper", torch.zeros(1, 3, 32, 32))
    assert (len(layers), sum(size for _, size in layers)) == (13, 4224)
