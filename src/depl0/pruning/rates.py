"""The learning rate of the gates, which follows from the length of the search."""

from __future__ import annotations

from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.generators import BoundedGenerator

TRAVEL = {"budget": 4.0, "penalty": 8.0}
"""How far a gate's score (with a budget: in standard deviations) or log α (with a penalty) should be able to move in a
whole search. Adam moves a parameter by its rate each step at most, so the rate follows from the number of steps."""


def gate_learning_rate(gated: GatedModel, steps: int) -> float:
    """Return a learning rate for Adam on ``gated.gate_parameters()`` in a search of so many steps."""
    if steps < 0:
        raise InputError(f"steps must be at least 0, got {steps} instead.")
    generator = gated.generator
    per_rate = 2.0 * generator.preset.bound if isinstance(generator, BoundedGenerator) else 1.0
    return TRAVEL["penalty" if gated.budget is None else "budget"] / per_rate / max(steps, 1)
