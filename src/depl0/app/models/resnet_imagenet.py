"""ResNet-50 for ImageNet; its state dict has the same keys as torchvision's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models._building_blocks import he_initialise, initialise_as_dep_l0
from depl0.app.models.registry import register

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
    """A bottleneck residual network: a 7x7 convolution, four stages, one linear layer."""

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(blocks[0], 64, width=64, stride=1)
        self.layer2 = _stage(blocks[1], 256, width=128, stride=2)
        self.layer3 = _stage(blocks[2], 512, width=256, stride=2)
        self.layer4 = _stage(blocks[3], 1024, width=512, stride=2)
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


def _stage(blocks: int, in_channels: int, width: int, stride: int) -> nn.Sequential:
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
