"""Residual networks: those for CIFAR (three stages of 16, 32 and 64 channels, 6n + 2 layers), and ResNet-50."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0._util.optional import torchvision
from depl0.app.models.plain import he_initialise, initialise_as_dep_l0
from depl0.app.models.spec import register

Shortcut = Literal["A", "B"]


class ZeroPadShortcut(nn.Module):
    """Option A: take every second pixel and pad with channels of zeros on both sides; there is nothing to learn.

    When the width doubles, a quarter of the new width is added before the old channels and a quarter after them.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        # Fixed here rather than read off the input, so that the amounts are constants in a traced graph.
        self.channels_before = (out_channels - in_channels) // 2
        self.channels_after = out_channels - in_channels - self.channels_before

    def forward(self, x: Tensor) -> Tensor:
        """Halve the image and widen it: (batch, in, h, w) to (batch, out, h/2, w/2)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels_before, self.channels_after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 and shortcut == "A":
            self.shortcut = ZeroPadShortcut(in_channels, out_channels)
        elif stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the two convolutions to the shortcut: (batch, in, h, w) to (batch, out, h/stride, w/stride)."""
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = self.bn2(self.conv2(branch))
        return F.relu(branch + self.shortcut(x))


class CifarResNet(nn.Module):
    """A residual network of 6n + 2 layers: one convolution, three stages of n blocks, one linear layer."""

    def __init__(self, blocks_per_stage: int, num_classes: int, shortcut: Shortcut, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(blocks_per_stage, 16, 16, stride=1, shortcut=shortcut)
        self.layer2 = _stage(blocks_per_stage, 16, 32, stride=2, shortcut=shortcut)
        self.layer3 = _stage(blocks_per_stage, 32, 64, stride=2, shortcut=shortcut)
        self.linear = nn.Linear(64, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, channels, 32, 32) to (batch, classes)."""
        x = F.relu(self.bn1(self.conv1(images)))  # (batch, 16, 32, 32)
        x = self.layer1(x)  # (batch, 16, 32, 32)
        x = self.layer2(x)  # (batch, 32, 16, 16)
        x = self.layer3(x)  # (batch, 64, 8, 8)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)  # (batch, 64)
        scores: Tensor = self.linear(x)
        return scores


def _stage(blocks: int, in_channels: int, out_channels: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride, shortcut)
    others = [BasicBlock(out_channels, out_channels, 1, shortcut) for _ in range(blocks - 1)]
    return nn.Sequential(first, *others)


@register
def resnet20(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-20: 0.27 M parameters and 40.6 M MACs with option-A shortcuts."""
    return CifarResNet(3, num_classes, shortcut, in_channels)


@register
def resnet56(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-56: 0.85 M parameters and 125.5 M MACs with option-A shortcuts."""
    return CifarResNet(9, num_classes, shortcut, in_channels)


@register
def resnet56_dep_l0(num_classes: int = 10, in_channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """Build ResNet-56 with the initial weights of the Dep-L0 paper's code."""
    network = CifarResNet(9, num_classes, shortcut, in_channels)
    initialise_as_dep_l0(network, "fan_in")
    return network


@register
def resnet56_b_dep_l0(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Build ResNet-56 as in that code, with option-B shortcuts: 0.86 M parameters and 125.7 M MACs."""
    return resnet56_dep_l0(num_classes, in_channels, "B")


@register
def resnet50(num_classes: int = 1000) -> nn.Module:
    """Build torchvision's ResNet-50, untrained: 25.6 M parameters and 4.1 G MACs on images of 224x224."""
    network: nn.Module = torchvision().models.resnet50(weights=None, num_classes=num_classes)
    return network


@register
def resnet50_dep_l0(num_classes: int = 1000) -> nn.Module:
    """Build ResNet-50 with the initial weights of the Dep-L0 paper's code."""
    network = resnet50(num_classes)
    initialise_as_dep_l0(network, "fan_in")
    return network
