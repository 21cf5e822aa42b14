"""Networks without shortcuts: LeNet-5 and VGG16 as in the L0 papers, and a small one for images of 8x8."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models.spec import ImageSize, register


def he_initialise(network: nn.Module) -> None:
    """Initialise the weights of every convolution from He's normal distribution and its bias with zeros.

    The variance is set by the number of outputs, so that gradients keep their scale in the backward pass. Linear layers
    and batch norms keep PyTorch's initialisation.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_as_dep_l0(network: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Initialise the weights as the Dep-L0 paper's code does: classifiers by their inputs, biases from N(0, 0.01).

    Its ResNets set the variance of convolutions by the number of inputs, its VGG16 by that of outputs.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan = mode if isinstance(module, nn.Conv2d) else "fan_in"
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, 0, 0.01)


class LeNet5(nn.Module):
    """Two convolutions with max-pools and two linear layers, without batch norm."""

    def __init__(self, num_classes: int, in_channels: int, image_size: ImageSize) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 20, kernel_size=5)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5)
        sides = (image_size, image_size) if isinstance(image_size, int) else image_size
        # Each convolution removes four pixels of a side, and each pool halves it.
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
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


@register
def lenet5(num_classes: int = 10, in_channels: int = 1, image_size: ImageSize = 28) -> LeNet5:
    """Build LeNet-5: 0.43 M parameters and 2.3 M MACs on MNIST."""
    return LeNet5(num_classes, in_channels, image_size)


# The max-pool follows the second convolution.
SMALL_WIDTHS = (32, 32, 64, 64)


class SmallCNN(nn.Module):
    """Four 3x3 convolutions with batch norm, a max-pool between the pairs, and one linear layer."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, SMALL_WIDTHS[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(SMALL_WIDTHS[0])
        self.conv2 = nn.Conv2d(SMALL_WIDTHS[0], SMALL_WIDTHS[1], kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(SMALL_WIDTHS[1])
        self.conv3 = nn.Conv2d(SMALL_WIDTHS[1], SMALL_WIDTHS[2], kernel_size=3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(SMALL_WIDTHS[2])
        self.conv4 = nn.Conv2d(SMALL_WIDTHS[2], SMALL_WIDTHS[3], kernel_size=3, padding=1, bias=False)
        self.bn4 = nn.BatchNorm2d(SMALL_WIDTHS[3])
        self.linear = nn.Linear(SMALL_WIDTHS[3], num_classes)
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
def small_cnn(num_classes: int = 10, in_channels: int = 1, image_size: ImageSize = 8) -> SmallCNN:
    """Build the small network: 66 k parameters and 1.5 M MACs on 8x8 digits. Larger images work too."""
    return SmallCNN(num_classes, in_channels)


# Each row is one resolution; a max-pool that halves the image follows every row.
VGG_WIDTHS = (
    (64, 64),
    (128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (512, 512, 512),
)


class VGG16(nn.Module):
    """The convolutional part of VGG16 with batch norm, followed by a single linear classifier."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_before = in_channels
        for stage in VGG_WIDTHS:
            for width in stage:
                layers += [
                    # Batch norm adds its own shift, so a bias here would have no effect.
                    nn.Conv2d(width_before, width, kernel_size=3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                ]
                width_before = width
            layers.append(nn.MaxPool2d(kernel_size=2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(width_before, num_classes)
        he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, channels, 32, 32) to (batch, classes)."""
        x = self.features(images)  # (batch, 512, 1, 1) for 32x32 images
        x = F.adaptive_avg_pool2d(x, 1)  # nothing to average at 32x32; larger images work too
        scores: Tensor = self.classifier(torch.flatten(x, 1))
        return scores


@register
def vgg16(num_classes: int = 10, in_channels: int = 3) -> VGG16:
    """Build VGG16 for images of 32x32 or more: 14.7 M parameters and 313 M MACs on CIFAR-10."""
    return VGG16(num_classes, in_channels)


@register
def vgg16_dep_l0(num_classes: int = 10, in_channels: int = 3) -> VGG16:
    """Build VGG16 with the initial weights of the Dep-L0 paper's code."""
    network = vgg16(num_classes, in_channels)
    initialise_as_dep_l0(network, "fan_out")
    return network
