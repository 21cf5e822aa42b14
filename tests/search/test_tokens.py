"""Tokens of very different size: errors of a residual sum are relative to each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depl0.search.recovery.compensation import compensate
from depl0.search.scores.reconstruction import reconstruction_errors
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
    first, second, third = reconstruction_errors(gated_of(network, tokens()), tokens()).tolist()
    assert min(first, second) > 10 * third


def test_the_fit_follows_most_tokens() -> None:
    network, (x,) = Residual().double(), tokens()
    wanted = network(x).detach()
    gated = gated_of(network, [x])
    compensate(gated, torch.tensor([False, True, False]), [x])
    gated.engine.fix_gates(torch.tensor([1.0, 0.0, 1.0]))
    error = (gated.extract()(x) - wanted).square().sum(-1) / wanted.square().sum(-1)
    assert float(error[:, 1:].mean()) < 1e-3
