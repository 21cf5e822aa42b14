"""Batch norms that are not the stock one: pruning leaves alone what it cannot rewrite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import depl0


class PlusOne(nn.BatchNorm2d):
    """Scales by 1 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.normal_(self.weight, 0, 0.2)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, 1 + self.weight, self.bias, self.training, 0.1, self.eps
        )


class Softplus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x)


def parametrised(width: int) -> nn.Module:
    norm = nn.BatchNorm2d(width)
    parametrize.register_parametrization(norm, "weight", Softplus())
    return norm


class Residual(nn.Module):
    def __init__(self, norm: str) -> None:
        super().__init__()
        make = PlusOne if norm == "plus one" else nn.BatchNorm2d
        self.stem, self.first = nn.Conv2d(3, 8, 3, padding=1), make(8)
        self.inner, self.second = nn.Conv2d(8, 8, 3, padding=1), make(8)
        self.outer, self.third = nn.Conv2d(8, 8, 3, padding=1), make(8)
        self.head = nn.Linear(8, 5)
        if norm == "parametrised":
            self.third = parametrised(8)
        if norm == "shared":
            self.second.weight = self.third.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.stem(x)))
        y = torch.relu(self.second(self.inner(x)))
        x = torch.relu(x + self.third(self.outer(y)))
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


KINDS = ("stock", "plus one", "shared", "parametrised")


def trained(kind: str) -> nn.Module:
    torch.manual_seed(0)
    network = Residual(kind)
    for _ in range(5):  # statistics that fit, and then weights that move away from them
        network(torch.randn(32, 3, 8, 8))
    with torch.no_grad():
        for conv in (network.stem, network.inner, network.outer):
            conv.weight.mul_(1.5)
    return network.eval()


def distance(found: Tensor, wanted: Tensor) -> float:
    """In standard deviations of what is wanted."""
    return float(((found - wanted).square().mean().sqrt() / wanted.std()).detach())


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_budget_changes_nothing(kind: str) -> None:
    network, images = trained(kind), torch.randn(64, 3, 8, 8)
    batches = [torch.randn(64, 3, 8, 8) for _ in range(4)]
    compact = depl0.prune(network, images[:1], data=batches, budget=1.0)
    assert distance(compact(images), network(images)) < 1e-4
