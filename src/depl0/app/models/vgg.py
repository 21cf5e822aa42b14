"""VGG16 for 32x32 images, with batch norm: thirteen convolutions and one linear layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.models._building_blocks import he_initialise, initialise_as_dep_l0
from depl0.app.models.registry import register

# Each row is one resolution; a max-pool that halves the image follows every row.
WIDTHS = (
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
        for stage in WIDTHS:
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
