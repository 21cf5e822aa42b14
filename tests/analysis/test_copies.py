"""Copies of a host that share its memory until either is written, and runs in a precision without converted copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from depl0.equivalence.comparison import Subject
from depl0.host.copies import isolated_deepcopy, own_memory
from depl0.host.inputs import ExampleInputs


class ManyUses(nn.Module):
    """Uses parameters in layers, as properties, in lists, and in computed parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.norm = nn.BatchNorm1d(8)
        self.linear = parametrizations.weight_norm(nn.Linear(8, 8))
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.rand(8, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        x = self.recurrent(self.linear(x).to(self.scale.dtype))[0]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return torch.cat([x @ self.scale.T, torch.stack([self.scale, self.scale])], 1) + self.scale.data[:, 0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_a_network_in_float64_equals_its_converted_copy(own: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    network, tokens = ManyUses().to(own), torch.randint(7, (2, 5))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    converted = isolated_deepcopy(network).double().train(training)
    with torch.no_grad():
        wanted = converted(tokens)
    subject = Subject.copy_of(network, {}, torch.float64)
    if training:
        with subject.in_training(torch.float64) as trained:
            found = trained(ExampleInputs.of(tokens))
    else:
        found = subject(ExampleInputs.of(tokens))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert {parameter.dtype for parameter in subject.model.parameters()} == {own}


def test_other_tensors_are_converted_too() -> None:
    network, x = nn.Linear(4, 4), ExampleInputs.of(torch.randn(2, 4))
    weight = torch.randn(4, 4)
    found = Subject(network, {"weight": weight}, torch.float64)(x)
    wanted = nn.functional.linear(x.args[0].double(), weight.double(), network.bias.double())
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)


def test_copies_share_large_parameters_until_either_is_written() -> None:
    network = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    values = [parameter.detach().clone() for parameter in network.parameters()]
    copied = isolated_deepcopy(network)
    assert torch._C._data_address(copied[0].weight) == torch._C._data_address(network[0].weight)
    with torch.no_grad():
        copied[0].weight.zero_()
        network[1].weight.zero_()
    assert torch.equal(network[0].weight, values[0]) and torch.equal(copied[1].weight, values[2])

    again = isolated_deepcopy(network)
    own_memory(again)
    assert torch._C._data_address(again[0].weight) != torch._C._data_address(network[0].weight)
    assert torch.equal(again[0].weight, values[0])
