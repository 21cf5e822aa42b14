"""The recipes that come with depl0, by name.

A recipe is a function that returns a complete :class:`Recipe`. Each has three variants: the plain name is the paper's
generator walked forward, ``-backward`` walks it backward, and ``-l0hc`` has independent gates.

The five networks of the paper hold the settings of its appendix A, and the penalty weights λ that its authors published
with their code. What the paper does not say is the usual choice: crops and flips of CIFAR images, the crops of
torchvision's reference training on ImageNet, images normalised by the data's mean and standard deviation.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

from depl0._suggest import did_you_mean
from depl0.errors import InputError
from depl0.generators import Direction
from depl0.recipes.recipe import Recipe
from depl0.recipes.sections import (
    DataSection,
    FinetuneSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    SearchSection,
    TargetSection,
    WeightOptimizerSection,
)
from depl0.recipes.toml import read_recipe

CIFAR10_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar10:data", "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
)
CIFAR100_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar100:data", "mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@final
@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the three ways to make gates that every recipe comes in."""

    suffix: str
    words: str
    method: str
    generator: str
    direction: Direction

    def gates(self, **others: Any) -> GatesSection:
        """Give the section of the gates."""
        return GatesSection(method=self.method, generator=self.generator, direction=self.direction, **others)


FORWARD = Variant("", "Dep-L0 forward", "dep-l0", "fc", "forward")
BACKWARD = Variant("-backward", "Dep-L0 backward", "dep-l0", "fc", "backward")
L0_HC = Variant("-l0hc", "L0-HC", "l0-hc", "independent", "forward")
VARIANTS = (FORWARD, BACKWARD, L0_HC)


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


def lenet5_fashion_mnist(variant: Variant = FORWARD) -> Recipe:
    """LeNet-5 on Fashion-MNIST."""
    return Recipe(
        name="lenet5-fashion-mnist" + variant.suffix,
        model=ModelSection(spec="lenet5"),
        data=DataSection(spec="fashion-mnist:data", batch_size=128),
        gates=variant.gates(groups="all", preset="default"),
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
        gates=variant.gates(groups="inner", preset="default"),
        target=TargetSection(budget=0.5, of="macs"),
        search=SearchSection(epochs=5, ramp=0.7, converged_epochs=0.75),
        weight_optimizer=WeightOptimizerSection(lr=0.03, nesterov=True, weight_decay=1e-4, schedule="constant"),
        finetune=FinetuneSection(epochs=7, lr=0.03, schedule="cosine"),
    )


def vgg16_cifar10(variant: Variant = FORWARD) -> Recipe:
    """The paper's VGG16 on CIFAR-10."""
    return _vgg16("vgg16-cifar10", variant, CIFAR10_DATA)


def vgg16_cifar100(variant: Variant = FORWARD) -> Recipe:
    """The paper's VGG16 on CIFAR-100."""
    return _vgg16("vgg16-cifar100", variant, CIFAR100_DATA)


def resnet56_cifar10(variant: Variant = FORWARD) -> Recipe:
    """The paper's ResNet-56 on CIFAR-10."""
    return _resnet56("resnet56-cifar10", variant, CIFAR10_DATA)


def resnet56_cifar100(variant: Variant = FORWARD) -> Recipe:
    """The paper's ResNet-56 on CIFAR-100."""
    return _resnet56("resnet56-cifar100", variant, CIFAR100_DATA)


def resnet50_imagenet(variant: Variant = FORWARD) -> Recipe:
    """The paper's ResNet-50 on ImageNet."""
    milestones = (30, 60)
    return Recipe(
        name="resnet50-imagenet" + variant.suffix,
        model=ModelSection(spec="resnet50"),
        data=DataSection(
            spec="folder:data/imagenet",
            batch_size=256,
            eval_batch_size=256,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            augment="imagenet",
            image_size=224,
            workers=8,
        ),
        gates=variant.gates(groups="inner", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=5e-9, penalty="params"),
        search=SearchSection(epochs=90, converged_epochs=8),
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
        data=DataSection(batch_size=128, augment="crop-flip", **data),
        gates=variant.gates(groups="all", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=5e-7 if variant is L0_HC else 1e-6, penalty="params"),
        search=SearchSection(epochs=300, converged_epochs=20),
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
        data=DataSection(batch_size=128, augment="crop-flip", **data),
        gates=variant.gates(groups="inner", preset="paper", evaluation="paper"),
        target=TargetSection(penalty_weight=1e-6 if variant is BACKWARD else 5e-7, penalty="params"),
        search=SearchSection(epochs=300, converged_epochs=20),
        weight_optimizer=WeightOptimizerSection(
            lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="step", milestones=milestones, factor=0.1
        ),
        gate_optimizer=GateOptimizerSection(lr=1e-3, schedule="step", milestones=milestones, factor=0.2),
    )


_MAKERS: tuple[Callable[[Variant], Recipe], ...] = (
    digits,
    custom,
    lenet5_fashion_mnist,
    resnet20_cifar10,
    vgg16_cifar10,
    vgg16_cifar100,
    resnet56_cifar10,
    resnet56_cifar100,
    resnet50_imagenet,
)

_ENTRIES: dict[str, tuple[Callable[[Variant], Recipe], Variant]] = {
    maker.__name__.replace("_", "-") + variant.suffix: (maker, variant) for maker in _MAKERS for variant in VARIANTS
}


def names() -> tuple[str, ...]:
    """List the names that :func:`get` knows."""
    return tuple(_ENTRIES)


def get(name: str) -> Recipe:
    """Give the recipe of this name.

    >>> get("vgg16-cifar10").weight_optimizer.lr
    0.05
    """
    maker, variant = _entry(name)
    return maker(variant)


def describe(name: str) -> str:
    """Say in one line what a recipe does.

    >>> describe("vgg16-cifar10-l0hc")
    "The paper's VGG16 on CIFAR-10. L0-HC, 300 epochs, λ = 5e-07 on params."
    """
    maker, variant = _entry(name)
    recipe = maker(variant)
    epochs = f"{recipe.search.epochs}"
    if recipe.finetune.epochs:
        epochs += f" + {recipe.finetune.epochs}"
    target = recipe.target
    if target.budget is not None:
        aim = f"budget {target.budget:.0%} of {target.of}"
    else:
        aim = f"λ = {target.penalty_weight:g} on {target.penalty}"
    return f"{maker.__doc__} {variant.words}, {epochs} epochs, {aim}."


def find(name_or_file: str) -> Recipe:
    """Give a recipe by its name, or read it from a ``.toml`` file."""
    is_file = name_or_file.lower().endswith(".toml") or os.path.basename(name_or_file) != name_or_file
    return read_recipe(name_or_file) if is_file else get(name_or_file)


def _entry(name: str) -> tuple[Callable[[Variant], Recipe], Variant]:
    if name not in _ENTRIES:
        hint = did_you_mean(name, names()) or "depl0 recipes lists them."
        raise InputError(f"there is no recipe called {name!r}.", hint=f"{hint} A file's name ends in .toml.")
    return _ENTRIES[name]
