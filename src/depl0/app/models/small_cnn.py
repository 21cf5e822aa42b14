"""A small batch-norm network for images of 8x8, such as handwritten digits: trained within seconds on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models._building_blocks import he_initialise
from depl0.app.models.registry import register

# The max-pool follows the second convolution.
WIDTHS = (32, 32, 64, 64)


class SmallCNN(nn.Module):
    """Four 3x3 convolutions with batch norm, a max-pool between the pairs, and one linear layer."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, WIDTHS[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.conv2 = nn.Conv2d(WIDTHS[0], WIDTHS[1], kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(WIDTHS[1])
        self.conv3 = nn.Conv2d(WIDTHS[1], WIDTHS[2], kernel_size=3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(WIDTHS[2])
        self.conv4 = nn.Conv2d(WIDTHS[2], WIDTHS[3], kernel_size=3, padding=1, bias=False)
        self.bn4 = nn.BatchNorm2d(WIDTHS[3])
        self.linear = nn.Linear(WIDTHS[3], num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, channels, size, size) to (batch, classes). Sizes below are for 8x8."""
        x = F.relu(self.bn1(self.conv1(images)))  # (batch, 32, 8, 8)
        x = F.relu(self.bn2(self.conv2(x)))  # (batch, 32, 8, 8)
        x = F.max_pool2d(x, 2)  # (batch, 32, 4, 4)
        x = F.relu(self.bn3(self.conv3(x)))  # (batch, 64, 4, 4)
        x = F.relu(self.bn4(self.conv4(x)))  # (batch, 64, 4, 4)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)  # (batch, 64)
        scores: Tensor = self.linear(x)
        return scores


@register
def small_cnn(num_classes: int = 10, in_channels: int = 1, image_size: int | tuple[int, int] = 8) -> SmallCNN:
    """Build the small network: 66 k parameters and 1.5 M MACs on 8x8 digits. Larger images work too."""
    return SmallCNN(num_classes, in_channels)
