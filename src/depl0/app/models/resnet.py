"""Residual networks: those for CIFAR (three stages of 16, 32 and 64 channels, 6n + 2 layers), and ResNet-50."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models.plain import he_initialise, initialise_as_dep_l0
from depl0.app.models.spec import register
from depl0.errors import InputError

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

    def extra_repr(self) -> str:
        """Show the two amounts when the network is printed."""
        return f"channels_before={self.channels_before}, channels_after={self.channels_after}"


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


def _resnet(depth: int, num_classes: int, shortcut: Shortcut, in_channels: int) -> CifarResNet:
    model = f"resnet{depth}"
    if shortcut not in ("A", "B"):
        raise InputError(
            f"The 'shortcut' parameter of {model} must be 'A' or 'B', got {shortcut!r} instead.",
            hint="'A' pads with zeros and has no parameters; 'B' is a 1x1 convolution with batch norm.",
        )
    return CifarResNet((depth - 2) // 6, num_classes, shortcut, in_channels)


@register
def resnet20(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-20: 0.27 M parameters and 40.6 M MACs with option-A shortcuts."""
    return _resnet(20, num_classes, shortcut, in_channels)


@register
def resnet32(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-32: 0.46 M parameters and 68.9 M MACs with option-A shortcuts."""
    return _resnet(32, num_classes, shortcut, in_channels)


@register
def resnet44(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-44: 0.66 M parameters and 97.2 M MACs with option-A shortcuts."""
    return _resnet(44, num_classes, shortcut, in_channels)


@register
def resnet56(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-56: 0.85 M parameters and 125.5 M MACs with option-A shortcuts."""
    return _resnet(56, num_classes, shortcut, in_channels)


@register
def resnet56_dep_l0(num_classes: int = 10, in_channels: int = 3, shortcut: Shortcut = "A") -> CifarResNet:
    """Build ResNet-56 with the initial weights of the Dep-L0 paper's code."""
    network = _resnet(56, num_classes, shortcut, in_channels)
    initialise_as_dep_l0(network, "fan_in")
    return network


@register
def resnet56_b_dep_l0(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """Build ResNet-56 as in that code, with option-B shortcuts: 0.86 M parameters and 125.7 M MACs."""
    return resnet56_dep_l0(num_classes, in_channels, "B")


@register
def resnet110(num_classes: int = 10, shortcut: Shortcut = "A", in_channels: int = 3) -> CifarResNet:
    """Build the CIFAR ResNet-110: 1.73 M parameters and 252.9 M MACs with option-A shortcuts."""
    return _resnet(110, num_classes, shortcut, in_channels)


# -- ImageNet ----------------------------------------------------------------------------------------------------------

# The last convolution of a block has this many times the channels of its 3x3 convolution.
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions, 1x1, 3x3 and 1x1, added to a shortcut. The stride is in the 3x3, as in torchvision."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the three convolutions to the shortcut: (batch, in, h, w) to (batch, 4·width, h/stride, w/stride)."""
        branch = F.relu(self.bn1(self.conv1(x)))
        branch = F.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return F.relu(branch + self.downsample(x))


class ImageNetResNet(nn.Module):
    """A bottleneck residual network: a 7x7 convolution, four stages, one linear layer.

    The keys of its state dict are those of torchvision's.
    """

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _bottleneck_stage(blocks[0], 64, width=64, stride=1)
        self.layer2 = _bottleneck_stage(blocks[1], 256, width=128, stride=2)
        self.layer3 = _bottleneck_stage(blocks[2], 512, width=256, stride=2)
        self.layer4 = _bottleneck_stage(blocks[3], 1024, width=512, stride=2)
        self.fc = nn.Linear(2048, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, channels, 224, 224) to (batch, classes)."""
        x = F.relu(self.bn1(self.conv1(images)))  # (batch, 64, 112, 112)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)  # (batch, 64, 56, 56)
        x = self.layer1(x)  # (batch, 256, 56, 56)
        x = self.layer2(x)  # (batch, 512, 28, 28)
        x = self.layer3(x)  # (batch, 1024, 14, 14)
        x = self.layer4(x)  # (batch, 2048, 7, 7)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)  # (batch, 2048)
        scores: Tensor = self.fc(x)
        return scores


def _bottleneck_stage(blocks: int, in_channels: int, width: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_channels, width, stride)
    others = [Bottleneck(EXPANSION * width, width, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(first, *others)


@register
def resnet50(num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """Build ResNet-50: 25.6 M parameters and 4.1 G MACs on images of 224x224."""
    return ImageNetResNet((3, 4, 6, 3), num_classes, in_channels)


@register
def resnet50_dep_l0(num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """Build ResNet-50 with the initial weights of the Dep-L0 paper's code."""
    network = resnet50(num_classes, in_channels)
    initialise_as_dep_l0(network, "fan_in")
    return network
