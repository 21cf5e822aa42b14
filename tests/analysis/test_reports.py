"""Every layer is reported, also one that cannot be sliced at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import depl0


class Mixed(nn.Module):
    """A layer with a computed weight between two ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.second = nn.Conv2d(6, 8, 3)
        self.normed = parametrizations.spectral_norm(nn.Conv2d(8, 4, 3))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(torch.relu(self.second(torch.relu(self.first(x)))))
        return self.last(x.mean((2, 3)))


def test_layers_come_in_order_of_execution_with_their_reasons() -> None:
    plan = depl0.plan(Mixed(), torch.randn(1, 3, 12, 12))
    rows = [(report.layer, report.channels, report.prunable) for report in plan.layers]
    assert rows == [("first", 6, 6), ("second", 8, 0), ("normed", 4, 0), ("last", 2, 0)]
    assert plan.layers[2].reasons == (
        ("the layer's weight is computed, not stored: spectral norm is of the whole weight", 4),
    )


def test_nothing_to_prune_names_the_layers_that_cannot_be_sliced() -> None:
    network = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )
    with pytest.raises(
        depl0.errors.NothingToPruneError, match="8 channels: the layer's weight is computed, not stored"
    ):
        depl0.plan(network, torch.randn(1, 3, 3, 3))
