"""Networks that are awkward to export."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGES = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)
