"""A network with everything that couples channels: a residual stream, a depthwise convolution, plain layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depl0
from depl0.gated import GatedModel

SIDE, CLASSES = 6, 3
STREAM, INNER, WIDE = slice(0, 5), slice(5, 11), slice(11, 18)
"""the gates of the three groups, in plan order"""


class Coupled(nn.Module):
    """stem ─┬─ inner ─ back ─┴─ wide ─ depthwise ─ linear; every convolution is followed by a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.bn_stem = nn.BatchNorm2d(5)
        self.inner = nn.Conv2d(5, 6, 3, padding=1, bias=False)
        self.bn_inner = nn.BatchNorm2d(6)
        self.back = nn.Conv2d(6, 5, 3, padding=1, bias=False)
        self.bn_back = nn.BatchNorm2d(5)
        self.wide = nn.Conv2d(5, 7, 1)
        self.bn_wide = nn.BatchNorm2d(7)
        self.depthwise = nn.Conv2d(7, 7, 3, padding=1, groups=7, bias=False)
        self.bn_depthwise = nn.BatchNorm2d(7)
        self.linear = nn.Linear(7, CLASSES)

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps that are read by the next layer, by the norm they come from."""
        stream = F.relu(self.bn_stem(self.stem(images)))
        inner = F.relu(self.bn_inner(self.inner(stream)))
        after = F.relu(self.bn_back(self.back(inner)) + stream)
        wide = F.relu(self.bn_wide(self.wide(after)))
        deep = F.relu(self.bn_depthwise(self.depthwise(wide)))
        return {"stem": stream, "inner": inner, "back": after, "wide": wide, "depthwise": deep}

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.maps(images)["depthwise"].mean((2, 3)))
        return scores


class NoNorm(nn.Module):
    """Two convolutions, and only the second has a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.Conv2d(2, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(F.relu(self.bare(images)))))
        scores: Tensor = self.linear(x.mean((2, 3)))
        return scores


def gated_network(network: type[nn.Module] = Coupled, **options: Any) -> GatedModel:
    """A network with gates and norms that are not as they were born."""
    torch.manual_seed(0)
    host = network()
    for module in host.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0.0, 1.0)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    options.setdefault("generator", "independent")
    return depl0.attach(host.eval(), torch.randn(1, 2, SIDE, SIDE), rng=torch.Generator().manual_seed(0), **options)


def some_batches(count: int = 2, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    images = torch.randn(count, size, 2, SIDE, SIDE, generator=rng)
    images[:, :, :, 2:] *= 0  # flat parts, so that maps differ in rank
    return [(part, torch.arange(size) % CLASSES) for part in images]
