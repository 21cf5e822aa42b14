"""First scores from a Taylor expansion, against the same thing done by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from depl0.search.importance import FEW, TRUST, draw_together, first_scores, standardise
from tests.networks.tiny import SIDE, tiny_gated

pytestmark = pytest.mark.usefixtures("remembered_plans")


def images_and_labels(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 1, SIDE, SIDE), torch.arange(count) % 4


def test_scores_are_squared_gradients_for_their_price() -> None:
    gated = tiny_gated()
    gated.host.bn1.bias.data.uniform_(0.1, 1)
    images, labels = images_and_labels(2 * FEW)
    found = first_scores(gated, [(images, labels)], F.cross_entropy, "macs")

    gated.double().eval()
    gates, step = torch.ones(gated.plan.num_gates, dtype=torch.float64), 1e-6
    worth, price = torch.zeros_like(gates), torch.zeros_like(gates)
    with torch.no_grad():
        for few, few_labels in zip(images.double().split(FEW), labels.split(FEW), strict=True):
            for gate in range(len(gates)):
                nudge = torch.zeros_like(gates)
                nudge[gate] = step
                higher, lower = (gated.call_with_gates(gates + sign * nudge, few) for sign in (1, -1))
                slope = (F.cross_entropy(higher, few_labels) - F.cross_entropy(lower, few_labels)) / (2 * step)
                worth[gate] += slope**2 / 2
    for gate in range(len(gates)):
        closed = gates.clone()
        closed[gate] = 0
        price[gate] = gated.dense_cost.macs - gated.expected.value_and_gradient(closed, "macs")[0]
    alone = draw_together(worth.log() - price.log(), [group.size for group in gated.plan.groups], TRUST)
    torch.testing.assert_close(found.double(), standardise(alone), rtol=1e-4, atol=1e-4)


def test_standardised_scores() -> None:
    scores = standardise(torch.tensor([1.0, 2.0, 3.0, 4.0]) * 1e6)
    torch.testing.assert_close((scores.mean(), scores.std()), (torch.tensor(0.0), torch.tensor(1.0)))
    assert float(standardise(torch.tensor([0.0] * 99 + [1e9])).max()) == 4
    assert standardise(torch.tensor([5.0])).tolist() == [0]
    assert standardise(torch.full((3,), 7.0)).tolist() == [0, 0, 0]
