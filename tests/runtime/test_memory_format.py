"""Channels last: chosen once, kept for the whole run, and not to be seen in what is saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depl0.app.runtime import execution as memory_format
from tests.networks.tiny import SIDE, TinyNet

SHAPE = (4, 1, SIDE, SIDE)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_weights_change_their_layout_and_nothing_else() -> None:
    torch.manual_seed(0)
    network = TinyNet().double()
    images = torch.randn(SHAPE, dtype=torch.float64)
    before, parameters = network(images), list(network.parameters())
    torch.manual_seed(1)
    expected = network(images)
    memory_format.set_channels_last(network)
    assert is_channels_last(network.conv2.weight)
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    torch.manual_seed(1)
    torch.testing.assert_close(network(images), expected, rtol=1e-12, atol=1e-12)
    memory_format.set_contiguous(network)
    assert network.conv2.weight.is_contiguous()
    assert before.shape == expected.shape


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_optimizer_that_was_loaded_goes_on_as_before(kind: str) -> None:
    """Fused steps walk through memory: with the state in another order than its parameter, they are wrong."""

    def make() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        network = memory_format.set_channels_last(TinyNet())
        if kind == "sgd":
            return network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
        return network, torch.optim.Adam(network.parameters(), lr=0.1, fused=True)

    def step(network: nn.Module, optimizer: Any, seed: int) -> None:
        torch.manual_seed(seed)
        network(torch.randn(SHAPE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    first, first_optimizer = make()
    step(first, first_optimizer, 1)
    second, second_optimizer = make()
    second.load_state_dict({name: value.clone().contiguous() for name, value in first.state_dict().items()})
    saved = copy.deepcopy(first_optimizer.state_dict())
    for state in saved["state"].values():
        for name, value in state.items():
            state[name] = value.contiguous()
    second_optimizer.load_state_dict(saved)
    memory_format.match_state_layout(second_optimizer)
    step(first, first_optimizer, 2)
    step(second, second_optimizer, 2)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
