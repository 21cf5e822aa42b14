"""The recipes that follow the paper, or its authors' code: their settings, typed a second time."""

from __future__ import annotations

import math

import pytest
import torch

import depl0
from depl0.app.models import build
from depl0.app.recipes import Recipe, get, with_overrides
from depl0.app.training.setup import gate_config
from depl0.gates.generators import PRESETS

CIFAR = ("cifar10", "cifar100")
SOURCES = ("paper", "authors")
VARIANTS = ("", "-backward", "-l0-hc")
BASES = ("vgg16-cifar10", "vgg16-cifar100", "resnet56-cifar10", "resnet56-cifar100", "resnet50-imagenet")


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
        assert (r.gates.evaluation, r.gates.start, r.gates.conditioning) == ("paper", None, "log_alpha")
        assert r.gates.draw == ("image" if "-authors" in r.name else "batch")
        assert (r.gates.preset == "reference-vgg16") is (r.name.startswith("vgg16") and "-authors" in r.name)
        assert (r.gates.budget, r.penalty.scale, r.gates.remove_blocks) == (None, "count", False)
        assert (r.search.warmup, r.search.label_smoothing, r.search.clip_norm) == (0, 0, None)
        weights = r.weight_optimizer
        assert (weights.momentum, weights.nesterov, weights.warmup_epochs) == (0.9, False, 0)
        assert (r.gate_optimizer.lr, r.gate_optimizer.betas) == (1e-3, (0.9, 0.999))
        assert (r.gates.preset.removesuffix("-vgg16"), PRESETS[r.gates.preset].bound) == (
            ("paper", 10.0) if source == "paper" else ("reference", math.log(100))
        )
        preset = PRESETS[r.gates.preset]
        assert (preset.bias_mean, preset.bias_std, preset.start, preset.initial_weight) == (3.0, 0.01, None, None)
        assert (preset.feed, preset.mean_input, preset.carry_gradient) == ("log_alpha", False, 1.0)


@pytest.mark.parametrize("images", CIFAR)
def test_vgg16(images: str) -> None:
    paper, authors = (get(f"vgg16-{images}-{source}") for source in SOURCES)
    for r, epochs in ((paper, 300), (authors, 299)):
        assert (r.model.spec, r.gates.groups, r.gates.alone) == ("vgg16_dep_l0", "all", ())
        assert (r.search.epochs, r.finetune.epochs, r.data.batch_size) == (epochs, 0, 128)
        assert r.weight_optimizer.weight_decay == 5e-4
    every_60 = (60, 120, 180, 240)
    assert rates(paper) == (0.05, every_60, 0.2, 1e-3, (every_60, 0.2))
    assert rates(authors) == (0.05, every_60, 0.2, 1e-3, None)  # their scheduler is bound to the other optimizer


@pytest.mark.parametrize("images", CIFAR)
def test_resnet56(images: str) -> None:
    paper, authors = (get(f"resnet56-{images}-{source}") for source in SOURCES)
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
        assert (r.finetune.epochs, r.finetune.gated, r.finetune_weight_decay) == (10, True, 1e-4)
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


@pytest.mark.slow
def test_resnet50_has_gates_on_its_first_convolution_and_two_in_every_block() -> None:
    layers = [layer for layer, _ in gated_layers("resnet50-imagenet-paper", torch.zeros(1, 3, 64, 64))]
    assert (layers[0], len(layers)) == ("conv1", 33)
    assert not any(layer.endswith("conv3") for layer in layers)


def test_lenet5_has_70_filters_in_its_convolutions() -> None:
    layers = gated_layers("lenet5-fashion-mnist-70", torch.zeros(1, 1, 28, 28))
    assert layers == [("conv1", 20), ("conv2", 50)]


def test_a_budget_leaves_out_gates_that_cut_nothing() -> None:
    recipe = get("resnet56-cifar10-paper")
    assert gate_config(with_overrides(recipe, {"gates.budget": 0.5})).alone == ()
