"""Networks in which one thing goes wrong at a known step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.networks.tiny import CLASSES, TinyNet

WRONG_STEP = 5


class _BadGradient(torch.autograd.Function):
    """Does nothing but spoil the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wrong: Tensor) -> Tensor:
        ctx.save_for_backward(wrong)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (wrong,) = ctx.saved_tensors
        return gradients[0] / (~wrong), None


class GradientThatExplodes(TinyNet):
    """A finite loss with a gradient that is none, once."""

    def forward(self, images: Tensor) -> Tensor:
        wrong = self.bn1.num_batches_tracked + 1 == WRONG_STEP
        scores = super().forward(images)
        return _BadGradient.apply(scores, wrong) if self.training else scores


class OnePixel(nn.Module):
    """Has a batch norm behind global pooling: one value per channel and image."""

    def __init__(self, num_classes: int = CLASSES, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 1)
        self.bn = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.conv1(images)).mean((2, 3), keepdim=True)
        return self.linear(torch.relu(self.bn(self.conv2(x))).flatten(1))


def no_images() -> Any:
    empty = (torch.zeros(0, 1, 6, 6, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    return empty, empty
