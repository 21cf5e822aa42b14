"""A threshold that is followed: expected cost, gradient, polarisation."""

from __future__ import annotations

import pytest
import torch

import depl0
from depl0.app import models
from depl0.gated import GatedModel
from depl0.gates.hard_concrete import open_probability
from depl0.gates.threshold import Threshold


@pytest.fixture(scope="module")
def gated() -> GatedModel:
    torch.manual_seed(0)
    return depl0.attach(models.build("small_cnn"), torch.randn(1, 1, 8, 8), generator="independent")


def make_threshold(gated: GatedModel, share: float, of: str = "macs") -> Threshold:
    return Threshold(gated.expected, getattr(gated.dense_cost, of), share, of)


def random_scores(gated: GatedModel, seed: int = 0) -> torch.Tensor:
    return torch.randn(gated.plan.num_gates, generator=torch.Generator().manual_seed(seed))


def expected_share(threshold: Threshold, scores: torch.Tensor) -> float:
    cost, _ = threshold.expected.value_and_gradient(open_probability(threshold(scores)), threshold.of)
    return float(cost) / threshold.dense


def search(
    gated: GatedModel, threshold: Threshold, steps: int, travel: float, seed: int = 0
) -> tuple[list[float], list[float], torch.Tensor]:
    """Let the scores drift as Adam would let them, by ``travel`` standard deviations in all; return costs, targets."""
    rng = torch.Generator().manual_seed(seed)
    scores = random_scores(gated, seed)
    threshold.expect_steps(steps)
    threshold.solve(scores)
    costs, targets, momentum = [], [], torch.zeros_like(scores)
    for step in range(steps):
        threshold.advance(step / steps, ramp=0.6)
        momentum = 0.9 * momentum + torch.randn(scores.shape, generator=rng)
        scores = scores + travel / steps * momentum.sign()
        threshold.follow(scores)
        costs.append(expected_share(threshold, scores))
        targets.append(float(threshold.target) / threshold.dense)
    return costs, targets, scores


@pytest.mark.parametrize("of", ["macs", "params"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
def test_expected_cost_follows_the_target_while_scores_drift(gated: GatedModel, share: float, of: str) -> None:
    costs, targets, _ = search(gated, make_threshold(gated, share, of), steps=400, travel=3.0)
    caught_up = 10  # it starts with everything wide open
    assert max(abs(c - t) for c, t in zip(costs[caught_up:], targets[caught_up:], strict=True)) < 2e-3
    median = sorted(abs(c - t) for c, t in zip(costs, targets, strict=True))[len(costs) // 2]
    assert median < 1e-3
    assert costs[-1] == pytest.approx(share, abs=1e-3)
    lowest = 1.0
    for cost in costs:  # falls, and rises by less than 2 % of the dense cost
        assert cost < lowest + 0.02
        lowest = min(lowest, cost)


@pytest.mark.parametrize("fraction", [0.0, 0.6, 1.0])
def test_no_move_of_the_scores_changes_the_expected_cost(gated: GatedModel, fraction: float) -> None:
    threshold = make_threshold(gated, 0.5).double()
    threshold.expected = threshold.expected.double()
    scores = random_scores(gated).double()
    threshold.advance(fraction, 0.6)
    threshold.solve(scores)
    for _ in range(5):
        threshold.follow(scores)
    leaf = scores.clone().requires_grad_()
    cost = threshold.expected(open_probability(threshold(leaf)), "macs")
    (through,) = torch.autograd.grad(cost, leaf)
    held = scores.clone().requires_grad_()
    at_fixed_threshold = threshold.expected(open_probability(threshold.sharpness * (held - threshold.shift)), "macs")
    (direct,) = torch.autograd.grad(at_fixed_threshold, held)
    assert float(through.abs().max()) < 1e-4 * float(direct.abs().max())
    threshold.expected.float()


def test_target_and_sharpness_depend_on_the_fraction_alone(gated: GatedModel) -> None:
    threshold = make_threshold(gated, 0.4)
    found = []
    for fraction in (0.0, 0.3, 0.6, 1.0):
        threshold.advance(fraction, 0.6)
        found.append((float(threshold.target) / threshold.dense, float(threshold.sharpness)))
    targets, sharpnesses = zip(*found, strict=True)
    assert targets == pytest.approx((1.0, 0.4 + 0.6 * 0.25, 0.4, 0.4))
    assert list(sharpnesses) == sorted(sharpnesses)
    threshold.advance(0.0, 0.0)  # no ramp: the threshold at once
    assert float(threshold.target) / threshold.dense == pytest.approx(0.4)
