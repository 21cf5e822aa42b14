"""Published recipes: the paper as printed (``-paper``), and the code that its authors published (``-authors``).

The two differ, and both differ from the defaults of depl0. docs/paper.md lists the source of every setting and the
remaining differences. Both share these settings: initial weights as in the code, nothing is cut while gates are
trained, gates outside training follow the paper's rule, batch-norm statistics stay as training left them, and the
gates' learning rate is the published one.

The paper prints no λ. The ``-paper`` recipes have the only ones that its authors ever published, those of their code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from depl0.app.recipes.catalog import BACKWARD, FORWARD, L0_HC, Variant
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

CIFAR10_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar10:data", "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
)
CIFAR100_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar100:data", "mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
)
IMAGENET = DataSection(
    spec="folder:data/imagenet",
    batch_size=256,
    eval_batch_size=256,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    augment="imagenet",
    image_size=224,
    workers=8,
)
Source: TypeAlias = Literal["paper", "authors"]
SOURCES: tuple[Source, ...] = ("paper", "authors")
PUBLISHED_VARIANTS = (FORWARD, BACKWARD, dataclasses.replace(L0_HC, suffix="-l0-hc"))
GATE_LR = 1e-3
"""Adam's initial learning rate in all experiments of the paper, independent of the length of the search"""


def _name(base: str, source: Source, variant: Variant) -> str:
    return f"{base}-{source}{variant.suffix}"


def _gates(source: Source, variant: Variant, **others: Any) -> GatesSection:
    if source == "paper":
        return variant.gates(**{"preset": "paper", "evaluation": "paper", **others})
    return variant.gates(**{"preset": "reference", "evaluation": "paper", "draw": "image", **others})


def _search(epochs: int) -> dict[str, Any]:
    """Return the sections that all published experiments share, and their search."""
    search = SearchSection(
        epochs=epochs,
        cut="never",
        first_scores="none",
        renew_statistics=False,
    )
    return {"search": search, "distill": DistillSection(weight=0.0)}


def vgg16(base: str, data: Mapping[str, Any], source: Source, variant: Variant) -> Recipe:
    """Return the recipe for VGG16 on CIFAR images."""
    steps: dict[str, Any] = {"schedule": "step", "milestones": (60, 120, 180, 240), "factor": 0.2}
    # The authors' scheduler for the gates changes the rate of the weights instead, so the gates' rate is constant.
    gate_steps = steps if source == "paper" else {"schedule": "constant"}
    return Recipe(
        name=_name(base, source, variant),
        model=ModelSection(spec="vgg16_dep_l0"),
        data=DataSection(augment="crop-flip", **data),
        gates=_gates(source, variant, groups="all", **({} if source == "paper" else {"preset": "reference-vgg16"})),
        penalty=PenaltySection(
            weight=5e-7 if variant.method == "l0-hc" else 1e-6,
            kind="groups" if source == "paper" else "chain",
        ),
        weight_optimizer=WeightOptimizerSection(lr=0.05, momentum=0.9, weight_decay=5e-4, **steps),
        gate_optimizer=GateOptimizerSection(lr=GATE_LR, **gate_steps),
        **_search(_cifar_epochs(source)),
    )


def resnet56(base: str, data: Mapping[str, Any], source: Source, variant: Variant) -> Recipe:
    """Return the recipe for ResNet-56 on CIFAR images.

    The 28 gated layers are the stem and the first convolution of 27 blocks.
    """
    # The authors' code sets the rate before an epoch that it numbers from 1.
    milestones = (60, 120, 180, 240) if source == "paper" else (59, 119, 179, 239)
    return Recipe(
        name=_name(base, source, variant),
        model=ModelSection(spec="resnet56_dep_l0" if source == "paper" else "resnet56_b_dep_l0"),
        data=DataSection(augment="crop-flip", **data),
        gates=_gates(source, variant, groups="inner", alone=("conv1",)),
        penalty=PenaltySection(
            weight=1e-6 if variant.direction == "backward" else 5e-7,
            kind="groups" if source == "paper" else "chain",
        ),
        weight_optimizer=WeightOptimizerSection(
            lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="step", milestones=milestones, factor=0.1
        ),
        gate_optimizer=GateOptimizerSection(
            lr=GATE_LR, schedule="step", milestones=milestones, factor=0.2 if source == "paper" else 0.1
        ),
        **_search(_cifar_epochs(source)),
    )


def resnet50(base: str, source: Source, variant: Variant) -> Recipe:
    """Return the recipe for ResNet-50 on ImageNet, which is fine-tuned for ten epochs with frozen gates."""
    # In the authors' code each rate lasts one epoch longer; the last one includes the first epoch of fine-tuning.
    late = 0 if source == "paper" else 1
    milestones = (30 + late, 60 + late)
    last: dict[str, Any] = {"lr": 1e-4, "schedule": "constant"}
    if source == "authors":
        last = {"lr": 1e-3, "schedule": "step", "milestones": (1,), "factor": 0.1}
    return Recipe(
        name=_name(base, source, variant),
        model=ModelSection(spec="resnet50_dep_l0"),
        data=IMAGENET,
        gates=_gates(source, variant, groups="inner"),
        penalty=PenaltySection(weight=5e-9, kind="groups" if source == "paper" else "groups-k2"),
        weight_optimizer=WeightOptimizerSection(
            lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="step", milestones=milestones, factor=0.1
        ),
        gate_optimizer=GateOptimizerSection(lr=GATE_LR, schedule="step", milestones=milestones, factor=0.2),
        finetune=FinetuneSection(epochs=10, gated=True, **last),
        **_search(90),
    )


def _cifar_epochs(source: Source) -> int:
    return 300 if source == "paper" else 299  # the code counts from 1 and stops before 300


def _titled(title: str, source: Source) -> str:
    return f"{title}, {'as printed' if source == 'paper' else 'as in its code'}."


def entries() -> dict[str, tuple[Callable[[Variant], Recipe], Variant, str]]:
    """Return the factory, variant and title of every recipe by name."""
    makers: dict[str, tuple[str, Callable[[Source, Variant], Recipe]]] = {
        "vgg16-cifar10": ("The paper's VGG16 on CIFAR-10", lambda s, v: vgg16("vgg16-cifar10", CIFAR10_DATA, s, v)),
        "vgg16-cifar100": ("The paper's VGG16 on CIFAR-100", lambda s, v: vgg16("vgg16-cifar100", CIFAR100_DATA, s, v)),
        "resnet56-cifar10": (
            "The paper's ResNet-56 on CIFAR-10",
            lambda s, v: resnet56("resnet56-cifar10", CIFAR10_DATA, s, v),
        ),
        "resnet56-cifar100": (
            "The paper's ResNet-56 on CIFAR-100",
            lambda s, v: resnet56("resnet56-cifar100", CIFAR100_DATA, s, v),
        ),
        "resnet50-imagenet": ("The paper's ResNet-50 on ImageNet", lambda s, v: resnet50("resnet50-imagenet", s, v)),
    }

    def bound(make: Callable[[Source, Variant], Recipe], source: Source) -> Callable[[Variant], Recipe]:
        return lambda variant: make(source, variant)

    return {
        _name(base, source, variant): (bound(make, source), variant, _titled(title, source))
        for base, (title, make) in makers.items()
        for source in SOURCES
        for variant in PUBLISHED_VARIANTS
    }
