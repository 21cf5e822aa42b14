"""Batch-norm statistics are re-estimated, or absorbed without a change of the network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import depl0
from depl0.search.recovery.statistics import absorb_statistics, reestimate


def test_they_become_those_of_the_batches() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.Dropout(0.5)).train()
    network[1].eval()
    batches = [(torch.randn(64, 1, 4, 4) + 3, torch.zeros(64)) for _ in range(3)]
    with torch.no_grad():
        inputs = torch.cat([network[0](images) for images, _ in batches])
    reestimate(network, batches)
    norm = network[1]
    torch.testing.assert_close(norm.running_mean, inputs.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, inputs.var((0, 2, 3)), rtol=0.02, atol=0.01)
    assert norm.momentum == 0.1
    assert [module.training for module in network.modules()] == [True, True, False, True]


def test_they_can_be_absorbed_so_that_training_begins_with_the_same_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with torch.no_grad():
        network[1].running_mean.copy_(torch.tensor([0.5, -1.0, 2.0]))
        network[4].running_var.fill_(9.0)
        network[4].weight.copy_(torch.tensor([1.0, -2.0, 0.0, 3.0]))
        network[3].weight[3] = 0  # a channel that never varies
    images = torch.randn(64, 1, 8, 8)
    before = network.eval()(images)
    absorb_statistics(network, images.split(16))
    torch.testing.assert_close(network(images), before, rtol=1e-4, atol=1e-4)
    trained = network.train()(images)[:, :3]
    torch.testing.assert_close(trained, before[:, :3], rtol=1e-2, atol=1e-2)


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


@pytest.mark.parametrize("kind", ["plus one", "shared", "parametrised"])
def test_norms_that_cannot_be_rewritten_are_left_alone(kind: str) -> None:
    torch.manual_seed(0)
    network = Residual(kind)
    for _ in range(5):  # statistics that fit, and then weights that move away from them
        network(torch.randn(32, 3, 8, 8))
    with torch.no_grad():
        for conv in (network.stem, network.inner, network.outer):
            conv.weight.mul_(1.5)
    images = torch.randn(64, 3, 8, 8)
    wanted = network.eval()(images)
    compact = depl0.prune(network, images[:1], data=[torch.randn(64, 3, 8, 8) for _ in range(4)], budget=1.0)
    assert float(((compact(images) - wanted).square().mean().sqrt() / wanted.std()).detach()) < 1e-4
