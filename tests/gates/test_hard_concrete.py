import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depl0.gates.hard_concrete import (
    BETA,
    GAMMA,
    RULES,
    ZETA,
    closing_log_alpha,
    evaluation_gates,
    open_probability,
    sample,
    sample_gates,
)

DRAWS = 40_000
log_alphas = st.floats(-6, 6)
repeatable = settings(max_examples=25)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def draw(log_alpha: float) -> torch.Tensor:
    return sample_gates(torch.full((DRAWS,), log_alpha), torch.Generator().manual_seed(17))


def share(found: torch.Tensor, probability: float) -> bool:
    """Whether a share of DRAWS is within five standard errors (and a little) of a probability."""
    error = math.sqrt(probability * (1 - probability) / DRAWS)
    return abs(found.double().mean().item() - probability) <= 5 * error + 1e-4


@repeatable
@given(log_alphas)
def test_the_open_probability_has_its_closed_form(log_alpha):
    found = open_probability(torch.tensor(log_alpha, dtype=torch.float64)).item()
    assert found == pytest.approx(sigmoid(log_alpha - BETA * math.log(0.1 / 1.1)), rel=1e-9)


@repeatable
@given(log_alphas)
def test_samples_are_open_and_one_as_often_as_the_probabilities_say(log_alpha):
    gates = draw(log_alpha)
    assert share(gates > 0, open_probability(torch.tensor(log_alpha)).item())
    assert share(gates == 1, sigmoid(log_alpha - BETA * math.log(1.1 / 0.1)))


@repeatable
@given(log_alphas, st.floats(0.05, 0.95))
def test_samples_between_zero_and_one_follow_the_distribution_function(log_alpha, value):
    # P(gate ≤ v) = σ(β·logit((v − γ)/(ζ − γ)) − log α)
    unit = (value - GAMMA) / (ZETA - GAMMA)
    assert share(draw(log_alpha) <= value, sigmoid(BETA * math.log(unit / (1 - unit)) - log_alpha))


@repeatable
@given(log_alphas, st.floats(0.001, 0.999))
def test_sample_has_its_closed_form(log_alpha, uniform):
    found = sample(torch.tensor(log_alpha, dtype=torch.float64), torch.tensor(uniform, dtype=torch.float64))
    stretched = sigmoid((math.log(uniform) - math.log(1 - uniform) + log_alpha) / BETA) * (ZETA - GAMMA) + GAMMA
    assert found.item() == pytest.approx(min(1, max(0, stretched)), abs=1e-9)


@repeatable
@given(log_alphas)
def test_the_median_gate_is_the_sample_at_one_half(log_alpha):
    log_alpha = torch.tensor(log_alpha, dtype=torch.float64)
    half = torch.tensor(0.5, dtype=torch.float64)
    torch.testing.assert_close(evaluation_gates(log_alpha, "median"), sample(log_alpha, half), rtol=0, atol=1e-9)


@repeatable
@given(log_alphas)
def test_the_paper_rule_leaves_the_temperature_out(log_alpha):
    found = evaluation_gates(torch.tensor(log_alpha, dtype=torch.float64), "paper").item()
    assert found == pytest.approx(min(1, max(0, sigmoid(log_alpha) * 1.2 - 0.1)), abs=1e-9)


def test_closing_points():
    assert closing_log_alpha("median") == pytest.approx(-1.599, abs=1e-3)
    assert closing_log_alpha("paper") == pytest.approx(-2.398, abs=1e-3)
    assert open_probability(torch.tensor(closing_log_alpha("median"))).item() == pytest.approx(0.5)
    assert open_probability(torch.tensor(closing_log_alpha("paper"))).item() == pytest.approx(0.3102, abs=1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gate_is_closed_exactly_at_and_below_the_closing_point(rule, dtype):
    closing = torch.tensor(closing_log_alpha(rule), dtype=dtype)
    # The numbers next to the closing point, where rounding alone would decide.
    below, above = [closing], [torch.nextafter(closing, closing.new_tensor(9.0))]
    for _ in range(40):
        below.append(torch.nextafter(below[-1], closing.new_tensor(-9.0)))
        above.append(torch.nextafter(above[-1], closing.new_tensor(9.0)))
    assert (evaluation_gates(torch.stack(below), rule) == 0).all()
    # Not merely above 0: far enough from it that no other machine's rounding arrives there.
    assert (evaluation_gates(torch.stack(above), rule) >= torch.finfo(dtype).eps).all()
    assert evaluation_gates(closing - 20, rule) == 0
    assert evaluation_gates(closing + 20, rule) == 1


@pytest.mark.parametrize("log_alpha", [-20.0, 0.0, 20.0])
@pytest.mark.parametrize("uniform", [0.0, 1e-30, 1 - 2**-24, 1.0])
def test_samples_and_gradients_are_finite_at_the_extremes(log_alpha, uniform):
    log_alpha = torch.tensor([log_alpha], requires_grad=True)
    gate = sample(log_alpha, torch.tensor([uniform]))
    gate.sum().backward()
    assert torch.isfinite(gate).all() and 0 <= gate.item() <= 1
    assert torch.isfinite(log_alpha.grad).all() and log_alpha.grad.item() >= 0


def test_half_precision_is_converted():
    half = torch.linspace(-5, 5, 21).bfloat16()
    uniform = torch.linspace(0.0, 1.0, 21)
    full = half.float()
    for found, wanted in [
        (open_probability(half), open_probability(full)),
        (evaluation_gates(half), evaluation_gates(full)),
        (evaluation_gates(half, "paper"), evaluation_gates(full, "paper")),
        (sample(half, uniform), sample(full, uniform)),
        (sample_gates(half, torch.Generator().manual_seed(1)), sample_gates(full, torch.Generator().manual_seed(1))),
    ]:
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted)
