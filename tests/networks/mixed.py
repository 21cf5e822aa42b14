"""A network with every kind of group, and scores for its gates."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import depl0
from depl0.gated import GatedModel


class Mixed(nn.Module):
    """A residual stream, a depthwise and a grouped convolution, a flattened head, and a group smaller than most N."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 20, 3, bias=False), nn.BatchNorm2d(20)
        self.expand, self.depthwise = nn.Conv2d(20, 36, 1), nn.Conv2d(36, 36, 3, groups=36, padding=1)
        self.project = nn.Conv2d(36, 20, 1)
        self.wide, self.grouped = nn.Conv2d(20, 24, 1), nn.Conv2d(24, 48, 1, groups=12)
        self.small = nn.Conv2d(48, 5, 1)
        self.head = nn.Linear(5 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.project(torch.relu(self.depthwise(torch.relu(self.expand(x)))))
        x = torch.relu(self.grouped(torch.relu(self.wide(x))))
        return self.head(torch.relu(self.small(x)).flatten(1))


@cache
def mixed() -> GatedModel:
    torch.manual_seed(0)
    return depl0.attach(Mixed().eval(), torch.randn(1, 3, 4, 4), generator="independent")


def given_scores(seed: int, mean: float = 0.0) -> GatedModel:
    gated = mixed()
    gated.free_gates()
    rng = torch.Generator().manual_seed(seed)
    by_group = [torch.randn(1, generator=rng) + torch.randn(g.size, generator=rng) for g in gated.plan.groups]
    gated.generator.start_from(torch.cat(by_group) + mean)
    return gated
