"""Statistics of batch norms, measured anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depl0.search.recovery.statistics import absorb_statistics, reestimate

pytestmark = pytest.mark.usefixtures("remembered_plans")


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
