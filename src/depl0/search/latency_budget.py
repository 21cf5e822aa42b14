"""A latency budget is kept by the compact network itself: what the tables foretell is measured, and put right.

Tables foretell the time of a network within some per cent. So the network that they choose is extracted and timed side
by side with the dense one, and the share that the tables are asked for is moved until the measured share is just within
the budget.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.distributed import from_first, is_first
from depl0.gated import GatedModel
from depl0.host.inputs import ExampleInputs
from depl0.latency.measure import ratio, time_networks
from depl0.select.freeze import Frozen, freeze, freeze_by, least_share

TRIES = 6
CLOSE = 0.03
"""a measured share that is at most so much below the budget (relatively) is good enough"""


@dataclass(frozen=True)
class Attempt:
    """One choice of gates: what the tables were asked for, what they foretold, and what was measured."""

    asked: float
    predicted: float
    measured: float


@dataclass(frozen=True)
class FrozenToLatency:
    """The gates, and how they were found."""

    frozen: Frozen
    attempts: tuple[Attempt, ...]
    chosen: int

    @property
    def predicted(self) -> float:
        """Return the share that the tables foretold for the chosen gates."""
        return self.attempts[self.chosen].predicted

    @property
    def measured(self) -> float:
        """Return the share that was measured."""
        return self.attempts[self.chosen].measured


def freeze_together(
    gated: GatedModel,
    budget: float,
    scores: Tensor | None = None,
    *,
    remove_blocks: bool = False,
    round_to: int = 1,
) -> tuple[Frozen, dict[str, Any]]:
    """Freeze in all processes alike: the first one measures, all take what it found. Also returns how it was found."""
    chosen, record = torch.zeros(gated.plan.num_gates + 1, device=gated.device), {}
    if is_first():
        result = freeze_to_latency(
            gated, gated.host, gated.example, budget, round_to, scores, remove_blocks=remove_blocks
        )
        chosen = torch.cat([result.frozen.gates, torch.tensor([float(result.frozen.forced)])]).to(gated.device)
        record = {
            "predicted": result.predicted,
            "measured": result.measured,
            "attempts": [asdict(attempt) for attempt in result.attempts],
        }
    chosen = from_first(chosen)
    frozen = Frozen(chosen[:-1].cpu(), int(chosen[-1]))
    gated.fix_gates(frozen.gates)
    return frozen, record


def latency_share(gated: GatedModel, open_probability: Tensor) -> dict[str, float]:
    """Return the expected share of the latency for ``metrics.jsonl``, where latency is the budget."""
    if gated.budget is None or gated.budget.of != "latency":
        return {}
    seconds, _ = gated.expected_cost_gradient(open_probability, "latency")
    return {"latency_share": float(seconds) / gated.budget.dense}


def freeze_to_latency(
    gated: GatedModel,
    dense: nn.Module,
    example: object,
    budget: float,
    round_to: int = 1,
    scores: Tensor | None = None,
    *,
    remove_blocks: bool = False,
) -> FrozenToLatency:
    """Fix the gates so that the compact network's measured latency is within a share of the dense network's.

    The order of the gates is that of their log α, or of ``scores`` where those are given.
    """
    inputs = ExampleInputs.of(example)
    least = least_share(gated, "latency", round_to)
    asked, too_fast, too_slow = budget, 0.0, float("inf")
    attempts: list[Attempt] = []
    found: list[Frozen] = []
    for _ in range(TRIES):
        gated.free_gates()
        if scores is None:
            frozen = freeze(gated, asked, "latency", remove_blocks, round_to=round_to)
        else:
            frozen = freeze_by(gated, scores, asked, "latency", remove_blocks, round_to=round_to)
        predicted = gated.share_of(frozen.gates, "latency")
        measured = measured_share(gated.extract(remove_blocks=remove_blocks), dense, inputs)
        attempts.append(Attempt(asked, predicted, measured))
        found.append(frozen)
        if measured > budget:
            too_slow = min(too_slow, asked)
        else:
            too_fast = max(too_fast, asked)
        if budget * (1 - CLOSE) <= measured <= budget or (measured <= budget and asked >= 1):
            break
        aimed = asked * budget * (1 - CLOSE / 2) / measured
        if not too_fast < aimed < too_slow:  # noise, or a step in the times: halve what is left
            aimed = (too_fast + min(too_slow, 1.0)) / 2
        if max(aimed, least) == asked:
            break
        asked = min(max(aimed, least), 1.0)
    chosen = _best(attempts, budget)
    gated.fix_gates(found[chosen].gates)
    return FrozenToLatency(found[chosen], tuple(attempts), chosen)


def measured_share(compact: nn.Module, dense: nn.Module, inputs: ExampleInputs) -> float:
    """Return how long the compact network takes, as a share of what the dense one takes, timed side by side."""
    times = time_networks({"dense": dense, "compact": compact}, inputs, repeats=30, seconds=15.0)
    return ratio(times["compact"], times["dense"])


def _best(attempts: list[Attempt], budget: float) -> int:
    """Return the slowest that is within the budget, or the fastest if none is."""
    within = [number for number, attempt in enumerate(attempts) if attempt.measured <= budget]
    if within:
        return max(within, key=lambda number: attempts[number].measured)
    return min(range(len(attempts)), key=lambda number: attempts[number].measured)
