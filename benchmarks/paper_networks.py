"""The paper's networks, narrow enough for a CPU: VGG16 with an eighth of the channels, ResNet-20 with half of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models.plain import VGG_WIDTHS as WIDTHS
from depl0.app.models.plain import he_initialise
from depl0.app.models.resnet import BasicBlock


class NarrowVGG16(nn.Module):
    """VGG16's thirteen convolutions with an eighth of the channels (528 in all), and a linear classifier."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for stage in WIDTHS:
            for width in (full // 8 for full in stage):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, 3, 32, 32) to (batch, classes)."""
        scores: Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return scores


class NarrowResNet20(nn.Module):
    """ResNet-20 with option-A shortcuts and stages of 8, 16 and 32 channels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        shapes = [*[(8, 8, 1)] * 3, (8, 16, 2), *[(16, 16, 1)] * 2, (16, 32, 2), *[(32, 32, 1)] * 2]
        self.blocks = nn.Sequential(*(BasicBlock(before, after, stride, "A") for before, after, stride in shapes))
        self.linear = nn.Linear(32, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, 3, 32, 32) to (batch, classes)."""
        x = self.blocks(F.relu(self.bn1(self.conv1(images))))
        scores: Tensor = self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return scores


def vgg16_eighth(num_classes: int = 10) -> NarrowVGG16:
    """Build the narrow VGG16: 0.23 M parameters and 5 M MACs."""
    return NarrowVGG16(num_classes)


def resnet20_half(num_classes: int = 10) -> NarrowResNet20:
    """Build the narrow ResNet-20: 0.07 M parameters and 10 M MACs."""
    return NarrowResNet20(num_classes)
