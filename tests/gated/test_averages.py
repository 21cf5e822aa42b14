"""A running mean of a gated network, as ``torch.optim.swa_utils`` keeps it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import depl0


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def slow_mean(averaged: Tensor, current: Tensor, _: object) -> Tensor:
    return 0.9999 * averaged + (1 - 0.9999) * current


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_mean_of_an_unchanged_network_is_that_network(use_buffers: bool) -> None:
    x = torch.randn(4, 1, 8, 8)
    gated = depl0.attach(network(), x)
    gated.fix_gates(torch.rand(gated.plan.num_gates))
    average = AveragedModel(gated, avg_fn=slow_mean, use_buffers=use_buffers)
    for _ in range(5):  # 0.9999 * 11 + 0.0001 * 11 is a little less than 11, and as an index it would be 10
        average.update_parameters(gated)
    gated.eval(), average.eval()
    torch.testing.assert_close(average(x), gated(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_mean_follows_while_gates_are_held_open(use_buffers: bool) -> None:
    x = torch.randn(4, 1, 8, 8)
    gated = depl0.attach(network(), x, budget=0.5)
    average = AveragedModel(gated, avg_fn=slow_mean, use_buffers=use_buffers)
    search = depl0.Search(gated, steps=10, averages=[average], warmup=0.4, cut="never")
    for _ in range(10):
        search.step()
        average.update_parameters(gated)
    for mean, own in zip(average.module.host.buffers(), gated.host.buffers(), strict=True):
        torch.testing.assert_close(mean, own)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_mean_follows_a_network_that_has_lost_channels(use_buffers: bool) -> None:
    x = torch.randn(4, 1, 8, 8)
    gated = depl0.attach(network(), x, budget=0.5)
    average = AveragedModel(gated, use_buffers=use_buffers)  # the plain mean subtracts, which truth values refuse
    search = depl0.Search(gated, steps=10, averages=[average], cut="never")
    search.step()
    average.update_parameters(gated)
    search.cut(torch.arange(gated.plan.num_gates) % 2 == 0)
    average.update_parameters(gated)
    assert average.module.host[3].weight.shape == gated.host[3].weight.shape == (8, 4, 3, 3)
