"""LeNet-5 as used in the L0 papers: 20 and 50 filters of 5x5, then 500 hidden units."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models._building_blocks import he_initialise, sides
from depl0.app.models.registry import register


class LeNet5(nn.Module):
    """Two convolutions with max-pools and two linear layers, without batch norm."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 20, kernel_size=5)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5)
        height, width = map(_side_after_convolutions, sides(image_size))
        self.fc1 = nn.Linear(50 * height * width, 500)
        self.fc2 = nn.Linear(500, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, channels, size, size) to (batch, classes). Sizes below are for 28x28."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)  # (batch, 20, 12, 12)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # (batch, 50, 4, 4)
        x = F.relu(self.fc1(torch.flatten(x, 1)))  # (batch, 500)
        scores: Tensor = self.fc2(x)
        return scores


def _side_after_convolutions(image_size: int) -> int:
    """Return the side after both convolutions, each of which removes four pixels, and both pools, which halve it."""
    return ((image_size - 4) // 2 - 4) // 2


@register
def lenet5(num_classes: int = 10, in_channels: int = 1, image_size: int | tuple[int, int] = 28) -> LeNet5:
    """Build LeNet-5: 0.43 M parameters and 2.3 M MACs on MNIST."""
    return LeNet5(num_classes, in_channels, image_size)
