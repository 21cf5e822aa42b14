"""The recipes that come with depl0, by name.

A recipe is a function that returns a complete :class:`Recipe`. Each has three variants: the plain name is the paper's
generator walked forward, ``-backward`` walks it backward, and ``-l0-hc`` has independent gates. Where a recipe starts
from trained weights, the plain name scores channels by reconstruction instead, which did better there
(docs/results/comparison).

The paper's experiments as published are in :mod:`depl0.paper.recipes`. Its five networks are here too, with the
schedule of its appendix A, but cut while they train, and with the λ of the authors' code on expected parameters. What
the paper does not say is the usual choice: crops and flips of CIFAR images, the crops of torchvision's reference
training on ImageNet, images normalised by the data's mean and standard deviation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, final

from depl0._util.registry import did_you_mean, load_plugins
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import (
    DataSection,
    DistillSection,
    FinetuneSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    PenaltySection,
    SearchSection,
    WeightOptimizerSection,
)
from depl0.app.recipes.toml import read_recipe
from depl0.errors import InputError
from depl0.gates.generators import Direction

CIFAR10_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar10:data", "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
)
CIFAR100_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar100:data", "mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GENTLE_LR = 0.01
"""for networks that start trained, on unknown data"""


@final
@dataclass(frozen=True)
class Variant:
    """One of the three kinds of gates that every recipe comes in."""

    suffix: str
    words: str
    method: str
    generator: str
    direction: Direction

    def gates(self, **others: Any) -> GatesSection:
        """Return the section [gates] of this variant."""
        return GatesSection(method=self.method, generator=self.generator, direction=self.direction, **others)


FORWARD = Variant("", "Dep-L0 forward", "dep-l0", "fc", "forward")
BACKWARD = Variant("-backward", "Dep-L0 backward", "dep-l0", "fc", "backward")
L0_HC = Variant("-l0-hc", "L0-HC", "l0-hc", "independent", "forward")
VARIANTS = (FORWARD, BACKWARD, L0_HC)


def cifar(data: Mapping[str, Any]) -> DataSection:
    """Return CIFAR images in batches of 128, cropped and flipped."""
    return DataSection(batch_size=128, augment="crop-flip", **data)


def imagenet() -> DataSection:
    """Return ImageNet images in batches of 256, cropped as in torchvision's reference training."""
    return DataSection(
        spec="folder:data/imagenet",
        batch_size=256,
        eval_batch_size=256,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        augment="imagenet",
        image_size=224,
        workers=8,
    )


def digits(variant: Variant = FORWARD) -> Recipe:
    """A small network on the embedded digits."""
    return Recipe(
        name="digits" + variant.suffix,
        model=ModelSection(spec="small_cnn"),
        data=DataSection(spec="digits", batch_size=64),
        gates=variant.gates(groups="all", preset="default", budget=0.25, of="macs"),
        search=SearchSection(epochs=25, warmup=0.25, ramp=0.6, converged_after=2 / 25, dense_baseline=True),
        weight_optimizer=WeightOptimizerSection(lr=0.05, nesterov=True, schedule="constant"),
        finetune=FinetuneSection(epochs=20, lr=0.05, schedule="cosine"),
    )


def custom(variant: Variant = FORWARD) -> Recipe:
    """Your own --model and --data."""
    return Recipe(
        name="custom" + variant.suffix,
        model=ModelSection(spec="small_cnn"),
        data=DataSection(spec="digits", batch_size=128),
        gates=variant.gates(groups="all", preset="default", budget=0.5, of="macs"),
        search=SearchSection(epochs=30, warmup=0.2, ramp=0.6),
        weight_optimizer=WeightOptimizerSection(lr=0.05, nesterov=True, schedule="constant"),
        finetune=FinetuneSection(epochs=20, lr=0.05, schedule="cosine"),
    )


def for_trained(recipe: Recipe) -> Recipe:
    """Return a recipe for a network that starts trained: its gates need no warm-up, and training must not undo it.

    One curve of gentle rates goes through search and fine-tuning, and what is cut is compensated for. Dep-L0 forward
    gives way to scores from reconstruction, which need no search and did better from trained weights
    (docs/results/comparison).
    """
    return recipe.replace(
        gates=_scored_unless_asked(recipe.gates),
        search=recipe.search.replace(epochs=20, warmup=0.0, first_scores="reconstruction", compensate=True),
        weight_optimizer=recipe.weight_optimizer.replace(lr=GENTLE_LR, schedule="cosine", warmup_epochs=0.5),
        finetune=recipe.finetune.replace(epochs=30, lr=None, schedule="continued"),
    )


def _scored_unless_asked(gates: GatesSection) -> GatesSection:
    """Let scores from reconstruction take the place of Dep-L0 forward; other variants are asked for by their name."""
    is_forward = (gates.method, gates.generator, gates.direction) == ("dep-l0", "fc", "forward")
    return gates.replace(method="reconstruction") if is_forward else gates


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
        gates=variant.gates(groups=groups, preset="default", budget=0.25, of="macs"),
        search=SearchSection(epochs=6, warmup=0.25, ramp=0.6, converged_after=0.5 / 6),
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
        gates=_scored_unless_asked(variant.gates(groups="inner", preset="default", budget=0.5, of="macs")),
        search=SearchSection(epochs=3, ramp=0.7, converged_after=0.25, first_scores="reconstruction", compensate=True),
        weight_optimizer=WeightOptimizerSection(
            lr=0.02, nesterov=True, weight_decay=1e-4, schedule="cosine", warmup_epochs=0.05
        ),
        finetune=FinetuneSection(epochs=9, schedule="continued"),
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
        penalty=PenaltySection(weight=5e-9),
        search=SearchSection(epochs=90, converged_after=8 / 90),
        distill=DistillSection(weight=0.0),
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
        penalty=PenaltySection(weight=5e-7 if variant is L0_HC else 1e-6),
        search=SearchSection(epochs=300, converged_after=20 / 300),
        distill=DistillSection(weight=0.0),
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
        penalty=PenaltySection(weight=1e-6 if variant is BACKWARD else 5e-7),
        search=SearchSection(epochs=300, converged_after=20 / 300),
        distill=DistillSection(weight=0.0),
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
    if recipe.gates.budget is not None:
        aim = f"budget {recipe.gates.budget:.0%} of {recipe.gates.of}"
    else:
        aim = f"λ = {recipe.penalty.weight:g} on {recipe.penalty.kind}"
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
