"""Networks that are awkward to export or to quantise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGES = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Outlier(nn.Sequential):
    """One channel is so large that the others are lost when both are rounded alike."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(64, 3))
        with torch.no_grad():
            for parameter in (self[2].weight, self[2].bias):
                parameter[0] *= 1e4
            self[3].weight[:, 0] *= 1e-6


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)
