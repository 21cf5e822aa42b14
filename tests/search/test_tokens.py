"""Tokens: errors relative to each token's size, and the output layer that shares its weight with the embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import depl0
from depl0.search.reconstruction import reconstruction_errors
from depl0.search.recovery.compensation import compensate
from depl0.search.recovery.outputs import compare_by
from tests.networks.readers import gated_of

LARGE = 1000.0


class Residual(nn.Module):
    """Three MLP channels: two hold the same number on all tokens but the first, which is very large; one holds that."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 3, bias=False), nn.Linear(3, 4, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(torch.tensor([[0.0, 1, 0, 0], [-0.5, 1, 0, 0], [1.0, 0, 0, 0]]))
            self.down.weight.copy_(torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0.1]]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


def tokens() -> list[Tensor]:
    x = torch.randn(8, 16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[..., 0] = 0
    x[:, 0, 0] = LARGE
    return [x]


def test_a_channel_for_one_large_token_counts_less_than_one_for_all_others() -> None:
    network = Residual()
    network.up.weight.data[1] = torch.tensor([0.0, 0, 1, 0])
    first, second, third = reconstruction_errors(gated_of(network, tokens()), tokens())[0].tolist()
    assert min(first, second) > 10 * third


def test_the_fit_follows_most_tokens() -> None:
    network, (x,) = Residual().double(), tokens()
    wanted = network(x).detach()
    gated = gated_of(network, [x])
    compensate(gated, torch.tensor([1.0, 0.0, 1.0]), [x])
    gated.fix_gates(torch.tensor([1.0, 0.0, 1.0]))
    error = (gated.extract()(x).detach() - wanted).square().sum(-1) / wanted.square().sum(-1)
    assert float(error[:, 1:].mean()) < 1e-3


class Tied(nn.Module):
    """A language model of one block, whose hidden channel 0 is the sum of two others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up, self.down = nn.Embedding(12, 6), nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embed.weight
        with torch.no_grad():
            for weight in (self.embed.weight.T, self.down.weight):
                weight[0] = weight[1] + weight[2]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


def test_a_tied_output_layer_is_scored_and_refitted_and_stays_tied() -> None:
    network, tokens = Tied(), torch.randint(12, (16, 10), generator=torch.Generator().manual_seed(0))
    wanted = network.double()(tokens).detach()
    gated = gated_of(network, [tokens])
    (hidden,) = (group for group in gated.plan.groups if group.size == 6)
    errors = reconstruction_errors(gated, [tokens])[0][hidden.gates]
    assert int(errors.argmin()) in (0, 1, 2) and float(errors.min()) < 1e-2 * float(errors.max())
    gates = torch.ones(gated.plan.num_gates)
    gates[hidden.offset] = 0
    done = compensate(gated, gates, [tokens])
    gated.fix_gates(gates)
    pruned = gated.extract()
    assert "embed" in {fitted.layer for fitted in done}  # by the first name of its weight
    assert pruned.head.weight is pruned.embed.weight and pruned.head.weight.shape == (12, 5)
    cut = gated_of(Tied(), [tokens])
    cut.fix_gates(gates)
    errors = [float((each(tokens).detach() - wanted).square().mean()) for each in (pruned, cut.extract())]
    assert errors[0] < 0.5 * errors[1]


def test_scores_of_tokens_are_class_scores() -> None:
    assert compare_by(Tied(), torch.zeros(2, 10, dtype=torch.long)).axes == (2,)
    assert compare_by(Residual(), torch.zeros(2, 10, 4)).axes == (None,)


def test_a_language_model_keeps_its_hidden_size_if_the_budget_allows() -> None:
    network, tokens = Tied(), torch.randint(12, (16, 10), generator=torch.Generator().manual_seed(0))
    settings: Any = {"data": [tokens], "recover": None, "quiet": True}
    pruned = depl0.prune(network, tokens[:1], budget=0.7, **settings)
    assert pruned.up.in_features == 6 and pruned.up.out_features < 8
    assert depl0.prune(network, tokens[:1], budget=0.4, **settings).up.in_features < 6


class Doubled(nn.Module):
    """A block with two equal channels, and a layer that reads its sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.out = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        with torch.no_grad():
            self.up.weight[1], self.up.bias[1] = self.up.weight[0], self.up.bias[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.down(torch.relu(self.up(x))))


def test_within_autocast_later_layers_read_what_a_refitted_layer_computes() -> None:
    x = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
    gated = depl0.attach(Doubled().eval(), x[:1], generator="independent", groups=["up"])
    closed = torch.arange(gated.plan.num_gates) == 1
    with torch.autocast("cpu", torch.bfloat16):
        done = compensate(gated, ~closed, [x])
    assert {fitted.layer: fitted for fitted in done}["out"].before < 1e-3
