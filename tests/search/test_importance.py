"""First scores from a Taylor expansion, against the same thing done by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from depl0.search.scores.importance import FEW, TRUST, draw_together, first_scores, standardise
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


def test_a_dead_channel_is_worth_least() -> None:
    gated = tiny_gated()
    gated.host.linear.weight.data[:, 3] = 0  # the fourth channel of the second group says nothing
    scores = first_scores(gated, [images_and_labels(64)], F.cross_entropy, "params")
    assert int(scores.argmin()) == gated.plan.groups[1].offset + 3
    assert bool(scores.isfinite().all())


def test_nothing_else_changes() -> None:
    gated = tiny_gated().train()
    gated.host.bn1.eval()
    modes = [module.training for module in gated.modules()]
    state = {name: tensor.clone() for name, tensor in gated.state_dict().items()}
    random_state = torch.get_rng_state()
    batches = [images_and_labels(32)]
    random_state = torch.get_rng_state()
    first_scores(gated, batches, F.cross_entropy, "macs")
    assert [module.training for module in gated.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in gated.state_dict().items())
    assert all(parameter.grad is None for parameter in gated.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_groups_are_drawn_together_and_keep_their_order() -> None:
    scores = torch.tensor([0.0, 1.0, 5.0, 20.0, 22.0])
    half = draw_together(scores, [3, 2], trust=0.5)
    torch.testing.assert_close(half[3:].mean() - half[:3].mean(), (scores[3:].mean() - scores[:3].mean()) / 2)
    torch.testing.assert_close(half.diff()[[0, 1, 3]], scores.diff()[[0, 1, 3]])
    torch.testing.assert_close(draw_together(scores, [3, 2], trust=1.0), scores)


def test_standardised_scores() -> None:
    scores = standardise(torch.tensor([1.0, 2.0, 3.0, 4.0]) * 1e6)
    torch.testing.assert_close((scores.mean(), scores.std()), (torch.tensor(0.0), torch.tensor(1.0)))
    assert float(standardise(torch.tensor([0.0] * 99 + [1e9])).max()) == 4
    assert standardise(torch.tensor([5.0])).tolist() == [0]
    assert standardise(torch.full((3,), 7.0)).tolist() == [0, 0, 0]
