"""Gates under a budget: gates compete, and a moving threshold keeps the expected cost at its target.

The generator gives every gate a score θ: the channel's importance per unit of cost, on a logarithmic scale. A gate's
log α is its distance to a common threshold s, times a sharpness κ:

    log α = κ·(θ − s),      s such that  E[cost(log α)] = target

The multiplier of the usual penalty therefore needs no tuning: it is solved for (s is its logarithm), by one Newton step
per training step, or several in a short search. The gradient also flows through s. With c = ∂E[cost]/∂θ, implicit
differentiation gives ∂s/∂θ = c/Σc, and the loss' gradient g becomes g − c·Σg/Σc: a gate rises if it is more important
than the other gates that its cost could pay for.

The target falls from the full cost to the budget. κ rises, so that gates are decided when the search ends. None of this
happens inside the network's forward pass: :class:`depl0.Search` moves target and threshold before every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from depl0._util.registry import suggest_fraction
from depl0._util.tensors import ConstantTensors
from depl0.costs.expected import ExpectedCost
from depl0.errors import InputError
from depl0.gates import hard_concrete

FIRST_SHARPNESS, LAST_SHARPNESS = 8.0, 150.0
"""At the last sharpness at most 0.4·4.4/150 = 1.2 % of standard normal scores have open probabilities of 0.1 to 0.9."""

SURE_SHARPNESS = 50.0
"""Initial sharpness of a search that starts at its budget: gates far from the threshold do not flicker."""

LEAST_ROUNDS = 200
"""Newton steps in a whole search: enough to move through all scores, each step at most 2/κ long."""


BudgetKind: TypeAlias = Literal["macs", "params", "latency"]
COSTS: Mapping[str, str] = MappingProxyType({"macs": "MACs", "params": "parameters", "latency": "latency"})
"""Display names of the costs that a budget can count."""


def counted(of: BudgetKind) -> Literal["macs", "params"]:
    """Return the cost used to select gates: MACs for a latency budget, until the pruned model is timed."""
    return "params" if of == "params" else "macs"


def check_share(share: object) -> None:
    """Raise InputError unless this is a fraction of a cost."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise InputError(
            f"budget must be greater than 0 and at most 1, got {share!r} instead.",
            hint=suggest_fraction(share) or "budget=0.5 leaves half of the cost.",
        )


@final
class Threshold(ConstantTensors):
    """Turns a generator's scores into log α whose expected cost follows a target.

    Args:
        expected: the network's expected cost.
        dense: its cost with every gate open.
        share: the fraction of the cost to keep at the end, in (0, 1].
        of: "macs" or "params".
    """

    shift: Tensor
    sharpness: Tensor
    target: Tensor
    marginal: Tensor

    def __init__(
        self, expected: ExpectedCost, dense: float, share: float, of: Literal["macs", "params"] = "macs"
    ) -> None:
        super().__init__()
        check_share(share)
        self.expected = expected
        self.share, self.of, self.dense = share, of, dense
        self.rounds = 1
        self.register_buffer("shift", torch.tensor(0.0))
        self.register_buffer("sharpness", torch.tensor(FIRST_SHARPNESS))
        self.register_buffer("target", torch.tensor(float(dense)))
        self.register_buffer("marginal", torch.zeros(expected.num_gates))
        self.removed: Tensor | None = None

    def close(self, removed: Tensor) -> None:
        """Mark these gates as permanently closed: they cost nothing and get no part of the budget."""
        self.removed = removed.to(self.shift.device)

    def advance(self, fraction: float, ramp: float) -> None:
        """Set target and sharpness for the completed fraction of the search; there are no step sizes to tune."""
        done = min(fraction / ramp, 1.0) if ramp > 0 else 1.0
        self.target.fill_(self.dense * (self.share + (1 - self.share) * (1 - done) ** 2))
        first = FIRST_SHARPNESS if ramp > 0 else SURE_SHARPNESS
        self.sharpness.fill_(first * (LAST_SHARPNESS / first) ** min(fraction, 1.0))

    def expect_steps(self, steps: int) -> None:
        """Set the number of training steps of the search: in a short search the threshold moves further per step."""
        self.rounds = max(1, -(-LEAST_ROUNDS // max(steps, 1)))

    def forward(self, scores: Tensor) -> Tensor:
        """Return log α of every gate for the current threshold, including the gradient through the threshold."""
        shift = self.shift + torch.dot(self.marginal, scores - scores.detach())
        return self.sharpness * (scores - shift)

    @torch.no_grad()
    def follow(self, scores: Tensor) -> None:
        """Move the threshold towards the target by damped Newton steps, usually one per training step."""
        reach = 2.0 / self.sharpness
        for _ in range(self.rounds):
            cost, slope = self._cost_and_slope(scores)
            step = (cost - self.target) / slope.sum().clamp_min(1e-6 * self.dense)
            self.shift.add_(torch.clamp(step, -reach, reach))
        _, slope = self._cost_and_slope(scores)
        torch.div(slope, slope.sum().clamp_min(1e-12 * self.dense), out=self.marginal)

    def _cost_and_slope(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected cost and its gradient with respect to the scores, with the threshold held fixed."""
        probability = self._open_probability(scores)
        cost, per_probability = self.expected.value_and_gradient(probability, self.of)
        return cost, torch.ops.aten.sigmoid_backward(per_probability, probability) * self.sharpness

    def _open_probability(self, scores: Tensor) -> Tensor:
        probability = hard_concrete.open_probability(self.sharpness * (scores - self.shift))
        return probability if self.removed is None else probability.masked_fill(self.removed, 0.0)

    @torch.no_grad()
    def solve(self, scores: Tensor) -> None:
        """Set the threshold exactly, by bisection: at the start of a search or when it is resumed."""
        low, high = scores.min() - 0.5, scores.max() + 0.5
        for _ in range(60):
            self.shift.copy_((low + high) / 2)
            cost, _ = self._cost_and_slope(scores)
            above = cost > self.target
            low, high = torch.where(above, self.shift, low), torch.where(above, high, self.shift)
        self.shift.copy_(high)
