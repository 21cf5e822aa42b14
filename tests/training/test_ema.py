"""The running mean of the weights against a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depl0.app.training.ema import Average
from tests.networks.tiny import SIDE, TinyNet

pytestmark = pytest.mark.usefixtures("remembered_plans")


def trained_a_bit(model: nn.Module, steps: int, average: Average | None = None) -> list[dict[str, torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, SIDE, SIDE)).square().sum().backward()
        optimizer.step()
        if average is not None:
            average.update()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    return states


def test_mean_of_weights_and_statistics() -> None:
    torch.manual_seed(0)
    model = TinyNet()
    mean = {name: value.clone() for name, value in model.state_dict().items()}
    average = Average(model, decay=0.8)
    states = trained_a_bit(model, 5, average)
    for state in states:
        for name, value in state.items():
            mean[name] = 0.8 * mean[name] + 0.2 * value if value.is_floating_point() else value
    with average.swapped_in():
        torch.testing.assert_close(dict(model.state_dict()), mean)
    for name, value in model.state_dict().items():
        assert torch.equal(value, states[-1][name])
    average.copy_to_model()
    torch.testing.assert_close(dict(model.state_dict()), mean)


def test_the_weights_come_back_after_an_error() -> None:
    model = TinyNet()
    average = Average(model, 0.5)
    trained_a_bit(model, 1)
    before = model.conv1.weight.clone()
    try:
        with average.swapped_in():
            assert not torch.equal(model.conv1.weight, before)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert torch.equal(model.conv1.weight, before)
