"""The recipes that come with depl0, by name.

A recipe is a function that returns a complete :class:`Recipe`. Each has three variants: the plain name is the paper's
generator walked forward, ``-backward`` walks it backward, and ``-l0hc`` has independent gates. Where a recipe starts
from trained weights, the plain name scores channels by reconstruction instead, which did better there
(docs/results/comparison).

The paper's experiments to the letter are in :mod:`depl0.paper.recipes`. Its five networks are here too, with the
schedule of its appendix A, but cut while they train, and with the λ of the authors' code on expected parameters. What
the paper does not say is the usual choice: crops and flips of CIFAR images, the crops of torchvision's reference
training on ImageNet, images normalised by the data's mean and standard deviation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from depl0._util.registry import did_you_mean, load_plugins
from depl0.app.recipes.images import CIFAR10_DATA, CIFAR100_DATA, IMAGENET_MEAN, IMAGENET_STD, cifar, imagenet
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import (
    DataSection,
    FinetuneSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    RecoverySection,
    SearchSection,
    TargetSection,
    WeightOptimizerSection,
)
from depl0.app.recipes.toml import read_recipe
from depl0.app.recipes.variants import BACKWARD, FORWARD, L0_HC, VARIANTS, Variant
from depl0.errors import InputError

GENTLE_LR = 0.01
"""for networks that start trained, on data that nobody knows"""


def digits(variant: Variant = FORWARD) -> Recipe:
    """A small network on the embedded digits."""
    return Recipe(
        name="digits" + variant.suffix,
        model=ModelSection(spec="small_cnn"),
        data=DataSection(spec="digits", batch_size=64),
        gates=variant.gates(groups="all", preset="default"),
        target=TargetSection(budget=0.25, of="macs"),
        search=SearchSection(epochs=25, gate_warmup=0.25, ramp=0.6, converged_epochs=2, dense_baseline=True),
        weight_optimizer=WeightOptimizerSection(lr=0.05, nesterov=True, schedule="constant"),
        finetune=FinetuneSection(epochs=20, lr=0.05, schedule="cosine"),
    )


def custom(variant: Variant = FORWARD) -> Recipe:
    """Your own --model and --data."""
    return Recipe(
        name="custom" + variant.suffix,
        model=ModelSection(spec="small_cnn"),
        data=DataSection(spec="digits", batch_size=128),
        gates=variant.gates(groups="all", preset="default"),
        target=TargetSection(budget=0.5, of="macs"),
        search=SearchSection(epochs=30, gate_warmup=0.2, ramp=0.6, converged_epochs=3),
        weight_optimizer=WeightOptimizerSection(lr=0.05, nesterov=True, schedule="constant"),
        finetune=FinetuneSection(epochs=20, lr=0.05, schedule="cosine"),
    )


def for_trained(recipe: Recipe) -> Recipe:
    """Return a recipe for a network that starts trained: its gates need no warm-up, and training must not undo it.

    One curve of gentle rates goes through search and fine-tuning, and what is cut is compensated for. Dep-L0 forward
    gives way to scores from reconstruction, which need no search and did better from trained weights
    (docs/results/comparison).
    """
    return replace(
        recipe,
        gates=_scored_unless_asked(replace(recipe.gates, importance="reconstruction")),
        search=replace(recipe.search, epochs=20, gate_warmup=0.0),
        weight_optimizer=replace(recipe.weight_optimizer, lr=GENTLE_LR, schedule="cosine", warmup_epochs=0.5),
        recovery=replace(recipe.recovery, compensate=True),
        finetune=replace(recipe.finetune, epochs=30, lr=None, schedule="continued"),
    )


def _scored_unless_asked(gates: GatesSection) -> GatesSection:
    """Let scores from reconstruction take the place of Dep-L0 forward; other variants are asked for by their name."""
    is_forward = (gates.method, gates.generator, gates.direction) == ("dep-l0", "fc", "forward")
    return replace(gates, method="reconstruction") if is_forward else gates


def lenet5_fashion_mnist(variant: Variant = FORWARD) -> Recipe:
    """LeNet-5 on Fashion-MNIST."""
    return _lenet5("lenet5-fashion-mnist", variant, "all")


def lenet5_fashion_mnist_70(variant: Variant = FORWARD) -> Recipe:
    """LeNet-5 on Fashion-MNIST, the 70 filters of its convolutions."""
    return _lenet5("lenet5-fashion-mnist-70", variant, ("conv1", "conv2"))


def _lenet5(name: str, variant: Variant, groups: str | tuple[str, ...]) -> Recipe:
    return Recipe(
        name=name + variant.suffix,
        model=ModelSection(spec="lenet5"),
        data=DataSection(spec="fashion-mnist:data", batch_size=128),
        gates=variant.gates(groups=groups, preset="default"),
        target=TargetSection(budget=0.25, of="macs"),
        search=SearchSection(epochs=6, gate_warmup=0.25, ramp=0.6, converged_epochs=0.5),
        weight_optimizer=WeightOptimizerSection(lr=0.02, nesterov=True, schedule="constant"),
        finetune=FinetuneSection(epochs=4, lr=0.02, schedule="cosine"),
    )


def resnet20_cifar10(variant: Variant = FORWARD) -> Recipe:
    """A trained ResNet-20 on CIFAR-10, from its --weights."""
    return Recipe(
        name="resnet20-cifar10" + variant.suffix,
        model=ModelSection(spec="resnet20"),
        data=DataSection(
            spec="cifar10:data", batch_size=128, mean=IMAGENET_MEAN, std=IMAGENET_STD, augment="crop-flip"
        ),
        gates=_scored_unless_asked(variant.gates(groups="inner", preset="default", importance="reconstruction")),
        target=TargetSection(budget=0.5, of="macs"),
        search=SearchSection(epochs=3, ramp=0.7, converged_epochs=0.75),
        weight_optimizer=WeightOptimizerSection(
            lr=0.02, nesterov=True, weight_decay=1e-4, schedule="cosine", warmup_epochs=0.05
        ),
        finetune=FinetuneSection(epochs=9, schedule="continued"),
        recovery=RecoverySection(compensate=True),
    )


def vgg16_cifar10(variant: Variant = FORWARD) -> Recipe:
    """VGG16 on CIFAR-10 on the paper's schedule, cut while trained."""
    return _vgg16("vgg16-cifar10", variant, CIFAR10_DATA)


def vgg16_cifar100(variant: Variant = FORWARD) -> Recipe:
    """VGG16 on CIFAR-100 on the paper's schedule, cut while trained."""
    return _vgg16("vgg16-cifar100", variant, CIFAR100_DATA)


def resnet56_cifar10(variant: Variant = FORWARD) -> Recipe:
    """ResNet-56 on CIFAR-10 on the paper's schedule, cut while trained."""
    return _resnet56("resnet56-cifar10", variant, CIFAR10_DATA)


def resnet56_cifar100(variant: Variant = FORWARD) -> Recipe:
    """ResNet-56 on CIFAR-100 on the paper's schedule, cut while trained."""
    return _resnet56("resnet56-cifar100", variant, CIFAR100_DATA)


def resnet50_imagenet(variant: Variant = FORWARD) -> Recipe:
    """ResNet-50 on ImageNet on the paper's schedule, cut while trained."""
    milestones = (30, 60)
    return Recipe(
        name="resnet50-imagenet" + variant.suffix,
        model=ModelSection(spec="resnet50"),
        data=imagenet(),
        gates=variant.gates(groups="inner", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=5e-9, penalty="params"),
        search=SearchSection(epochs=90, converged_epochs=8, distill=0.0),
        weight_optimizer=WeightOptimizerSection(
            lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="step", milestones=milestones, factor=0.1
        ),
        gate_optimizer=GateOptimizerSection(lr=1e-3, schedule="step", milestones=milestones, factor=0.2),
        # The third factor of 0.1 falls on epoch 90, where fine-tuning starts.
        finetune=FinetuneSection(epochs=10, lr=1e-4, schedule="constant", gated=True),
    )


def _vgg16(name: str, variant: Variant, data: Mapping[str, Any]) -> Recipe:
    milestones = (60, 120, 180, 240)
    return Recipe(
        name=name + variant.suffix,
        model=ModelSection(spec="vgg16"),
        data=cifar(data),
        gates=variant.gates(groups="all", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=5e-7 if variant is L0_HC else 1e-6, penalty="params"),
        search=SearchSection(epochs=300, converged_epochs=20, distill=0.0),
        weight_optimizer=WeightOptimizerSection(
            lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="step", milestones=milestones, factor=0.2
        ),
        gate_optimizer=GateOptimizerSection(lr=1e-3, schedule="step", milestones=milestones, factor=0.2),
    )


def _resnet56(name: str, variant: Variant, data: Mapping[str, Any]) -> Recipe:
    milestones = (60, 120, 180, 240)
    return Recipe(
        name=name + variant.suffix,
        model=ModelSection(spec="resnet56"),
        data=cifar(data),
        gates=variant.gates(groups="inner", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=1e-6 if variant is BACKWARD else 5e-7, penalty="params"),
        search=SearchSection(epochs=300, converged_epochs=20, distill=0.0),
        weight_optimizer=WeightOptimizerSection(
            lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="step", milestones=milestones, factor=0.1
        ),
        gate_optimizer=GateOptimizerSection(lr=1e-3, schedule="step", milestones=milestones, factor=0.2),
    )


_MAKERS: tuple[Callable[[Variant], Recipe], ...] = (
    digits,
    custom,
    lenet5_fashion_mnist,
    lenet5_fashion_mnist_70,
    resnet20_cifar10,
    vgg16_cifar10,
    vgg16_cifar100,
    resnet56_cifar10,
    resnet56_cifar100,
    resnet50_imagenet,
)

Entry: TypeAlias = tuple[Callable[[Variant], Recipe], Variant, str]
"""what makes a recipe, for which variant, and its title"""


@cache
def _entries() -> dict[str, Entry]:
    """Return every recipe by its name; other packages give theirs under the entry points ``depl0.recipes``."""
    entries: dict[str, Entry] = {
        maker.__name__.replace("_", "-") + variant.suffix: (maker, variant, maker.__doc__ or "")
        for maker in _MAKERS
        for variant in VARIANTS
    }
    for more in load_plugins("depl0.recipes").values():
        entries |= more()
    return entries


def names() -> tuple[str, ...]:
    """List the names that :func:`get` knows."""
    return tuple(_entries())


def get(name: str) -> Recipe:
    """Give the recipe of this name.

    >>> get("vgg16-cifar10").weight_optimizer.lr
    0.05
    """
    maker, variant, _ = _entry(name)
    return maker(variant)


def describe(name: str) -> str:
    """Say in one line what a recipe does.

    >>> describe("vgg16-cifar10-paper-l0-hc")
    "The paper's VGG16 on CIFAR-10, as printed. L0-HC, 300 epochs, λ = 5e-07 on groups."
    """
    maker, variant, title = _entry(name)
    recipe = maker(variant)
    epochs = f"{recipe.search.epochs}"
    if recipe.finetune.epochs:
        epochs += f" + {recipe.finetune.epochs}"
    target = recipe.target
    if target.budget is not None:
        aim = f"budget {target.budget:.0%} of {target.of}"
    else:
        aim = f"λ = {target.penalty_weight:g} on {target.penalty}"
    method = recipe.gates.method
    chosen_by = variant.words if method == variant.method else f"Channels by {method}"
    return f"{title} {chosen_by}, {epochs} epochs, {aim}."


def find(name_or_file: str) -> Recipe:
    """Give a recipe by its name, or read it from a ``.toml`` file."""
    is_file = name_or_file.lower().endswith(".toml") or os.path.basename(name_or_file) != name_or_file
    return read_recipe(name_or_file) if is_file else get(name_or_file)


def _entry(name: str) -> Entry:
    if name not in _entries():
        hint = did_you_mean(name, names()) or "depl0 recipes lists them."
        raise InputError(f"there is no recipe called {name!r}.", hint=f"{hint} A file's name ends in .toml.")
    return _entries()[name]
