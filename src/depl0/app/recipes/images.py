"""What the recipes say about well-known images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from depl0.app.recipes.sections import DataSection

CIFAR10_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar10:data", "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
)
CIFAR100_DATA: Mapping[str, Any] = MappingProxyType(
    {"spec": "cifar100:data", "mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def cifar(data: Mapping[str, Any]) -> DataSection:
    """Give CIFAR images in batches of 128, cropped and flipped."""
    return DataSection(batch_size=128, augment="crop-flip", **data)


def imagenet() -> DataSection:
    """Give ImageNet's images in batches of 256, cropped as in torchvision's reference training."""
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
