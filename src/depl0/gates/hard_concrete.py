"""The hard concrete distribution: a random number in [0, 1] that is exactly 0 or exactly 1 with positive probability.

A logistic variable with location log α is squashed by a sigmoid of temperature β, stretched from (0, 1) to (γ, ζ) with
γ < 0 and ζ > 1, and clipped to [0, 1]:

    s    = σ((log u − log(1 − u) + log α) / β),   u uniform in (0, 1)
    gate = min(1, max(0, s·(ζ − γ) + γ))

Values that the stretching moves below 0 or above 1 become exactly 0 or 1, and yet the gate has a gradient in log α
(Louizos et al., 2018, arXiv:1712.01312).

All functions are pure, work element by element on tensors of any shape, and compute in float32 or wider: half-precision
inputs are converted first, even under autocast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from depl0.errors import InputError

BETA = 2 / 3
"""Temperature: the smaller, the closer the gates are to 0 and 1."""

GAMMA = -0.1
"""Lower end of the stretched interval."""

ZETA = 1.1
"""Upper end of the stretched interval."""

_LOG_ODDS_OF_ZERO = math.log(-GAMMA / ZETA)  # the log odds of s where the stretched value is 0

# The log α at or below which each rule's evaluation gate is exactly 0.
_CLOSING: Mapping[str, float] = MappingProxyType({"median": BETA * _LOG_ODDS_OF_ZERO, "paper": _LOG_ODDS_OF_ZERO})
_TEMPERATURE: Mapping[str, float] = MappingProxyType({"median": BETA, "paper": 1.0})

RULES = tuple(_CLOSING)
"""Names of the rules for evaluation gates."""


def open_probability(log_alpha: Tensor) -> Tensor:
    """Compute the probability that a gate is not closed: P(gate > 0) = σ(log α − β·log(−γ/ζ)).

    >>> open_probability(torch.tensor([-1.5986, 0.0, 3.0]))
    tensor([0.5000, 0.8318, 0.9900])
    """
    return torch.sigmoid(_at_least_float32(log_alpha) - BETA * _LOG_ODDS_OF_ZERO)


def sample(log_alpha: Tensor, uniform: Tensor) -> Tensor:
    """Turn uniform noise into gates: clip(σ((log u − log(1 − u) + log α)/β)·(ζ − γ) + γ).

    Noise is kept one rounding step away from 0 and 1, so that its log odds and all gradients are finite.

    >>> sample(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.1, 0.5, 0.9]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    log_alpha = _at_least_float32(log_alpha)
    noise = torch.logit(uniform.to(log_alpha.dtype), eps=torch.finfo(log_alpha.dtype).eps)
    return _stretch(torch.sigmoid((noise + log_alpha) * (1 / BETA))).clamp(0, 1)


def sample_gates(log_alpha: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Sample one gate for every log α, with the noise of all gates drawn at once.

    ``rng`` is the random generator of the noise, on the device of ``log_alpha``. By default PyTorch's global one is
    used.

    >>> gates = sample_gates(torch.tensor([-9.0, 9.0]), torch.Generator().manual_seed(0))
    >>> gates
    tensor([0., 1.])
    """
    log_alpha = _at_least_float32(log_alpha)
    uniform = torch.rand(log_alpha.shape, generator=rng, dtype=log_alpha.dtype, device=log_alpha.device)
    return sample(log_alpha, uniform)


def evaluation_gates(log_alpha: Tensor, rule: str = "median") -> Tensor:
    """Compute the deterministic gates that are used outside training.

    ======== ============================================ =======================================
    rule     gate                                         closed when
    ======== ============================================ =======================================
    median   clip(σ(log α/β)·(ζ − γ) + γ)                 log α ≤ −1.60, open probability ≤ 0.50
    paper    clip(σ(log α)·(ζ − γ) + γ)                   log α ≤ −2.40, open probability ≤ 0.31
    ======== ============================================ =======================================

    The median rule closes the gates that training mostly samples as closed; the paper's rule keeps some of them. A gate
    is exactly 0 if log α is at or below :func:`closing_log_alpha`, and positive otherwise.

    >>> evaluation_gates(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([0.0000, 0.5000, 1.0000])
    >>> evaluation_gates(torch.tensor([-2.0, 0.0, 3.0]), rule="paper")
    tensor([0.0430, 0.5000, 1.0000])
    """
    closing = closing_log_alpha(rule)
    log_alpha = _at_least_float32(log_alpha)
    # Rounding must not decide whether a channel is kept: next to the threshold only the comparison decides.
    smallest = torch.finfo(log_alpha.dtype).eps
    gates = _stretch(torch.sigmoid(log_alpha * (1 / _TEMPERATURE[rule]))).clamp(smallest, 1)
    return torch.where(log_alpha <= closing, 0.0, gates)


def closing_log_alpha(rule: str = "median") -> float:
    """Return the log α at or below which an evaluation gate is exactly 0: β·log(−γ/ζ) (median) or log(−γ/ζ) (paper).

    >>> round(closing_log_alpha("median"), 3), round(closing_log_alpha("paper"), 3)
    (-1.599, -2.398)
    """
    if rule not in _CLOSING:
        raise InputError(
            f"The rule for evaluation gates must be one of {', '.join(map(repr, RULES))}, got {rule!r} instead.",
            hint="'median' closes what training mostly treats as closed; 'paper' is the published rule.",
        )
    return _CLOSING[rule]


def _stretch(unit: Tensor) -> Tensor:
    """Map (0, 1) to (γ, ζ) in one operator."""
    return torch.rsub(unit, GAMMA, alpha=GAMMA - ZETA)


def _at_least_float32(values: Tensor) -> Tensor:
    """Convert to float32, because the odds of rare events underflow in half precision; float64 is kept."""
    return values if values.dtype == torch.float64 else values.float()
