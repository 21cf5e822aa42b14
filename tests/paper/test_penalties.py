"""The penalties of the authors' code against their formulas, written out layer by layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depl0


class Block(nn.Module):
    """A first convolution on a shortcut, one residual block of kernels 3 and 1, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.one, self.norm1 = nn.Conv2d(4, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.two, self.norm2 = nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.last, self.norm3 = nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        y = F.relu(self.norm2(self.two(F.relu(self.norm1(self.one(x))))))
        return self.head(F.relu(x + self.norm3(self.last(y))).mean((2, 3)))


@pytest.fixture(scope="module")
def gated() -> depl0.GatedModel:
    torch.manual_seed(0)
    gated = depl0.attach(
        Block(), torch.randn(1, 2, 5, 5), groups="inner", alone=("stem",), generator="independent", preset="paper"
    )
    with torch.no_grad():
        gated.generator.log_alpha.normal_()
    return gated


def test_the_chain_multiplies_expected_inputs_and_outputs_of_gated_layers(gated: depl0.GatedModel) -> None:
    stem, one, two = (part.sum() for part in gated.open_probability().split([4, 3, 6]))
    torch.testing.assert_close(gated.penalty("chain", scale="count"), 9 * 2 * stem + 9 * stem * one + one * two)
    share = gated.penalty("chain") * (9 * 2 * 4 + 9 * 4 * 3 + 3 * 6)
    torch.testing.assert_close(share, gated.penalty("chain", scale="count"))


def test_groups_k2_counts_every_filter_once_more_for_each_position_of_its_kernel(gated: depl0.GatedModel) -> None:
    stem, one, two = (part.sum() for part in gated.open_probability().split([4, 3, 6]))
    found = gated.penalty("groups-k2", scale="count")
    torch.testing.assert_close(found, 81 * 2 * stem + 81 * 4 * one + 3 * two)
    paper = gated.penalty("groups", scale="count")
    torch.testing.assert_close(paper, 9 * 2 * stem + 9 * 4 * one + 3 * two)
    for kind in ("chain", "groups-k2"):
        (gradient,) = torch.autograd.grad(gated.penalty(kind), [gated.generator.log_alpha])
        assert bool((gradient > 0).all())
