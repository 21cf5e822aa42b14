"""The learning rate of the gates, which follows from the length of the search and from the generator.

Adam moves a parameter by about its learning rate in each step, so the rate follows from the number of steps: a search
should be able to move every gate by a given distance. How far one step moves a gate depends on the generator, because
the contributions of its parameters add up. An independent gate moves by the learning rate. Other gates move by
Σ_θ |∂ log α/∂θ| times the learning rate, and this factor changes during the search. The movement is therefore simulated
once, on a copy of the generator with the same gradient on every gate, in a few long steps of Adam. As a result all
generators travel equally far and can be compared. Under the published presets, whose tanh is flat at first and whose
groups influence each other strongly, the distance is only met approximately; their recipes state the published rates.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from depl0.errors import InputError
from depl0.gates.generators import BoundedGenerator, Generator

TRAVEL = {"budget": 4.0, "penalty": 8.0}
"""Distance that a gate's score (with a budget: in standard deviations) or log α (with a penalty) should be able to move
in a whole search."""
BETAS = (0.9, 0.999)
"""Adam's defaults."""

_STEPS = 24
"""Number of long steps in the simulation."""
_FARTHEST = 0.9
"""Largest simulated fraction of the distance from the start to the bound. Beyond it the tanh is too flat to measure."""
_TOLERANCE = 0.01
_TRIES = 12


def gate_learning_rate(
    generator: Generator, steps: int, *, has_budget: bool, betas: tuple[float, float] = BETAS
) -> float:
    """Return a learning rate for Adam on a generator's parameters in a search of ``steps`` steps."""
    if steps < 0:
        raise InputError(f"steps must be at least 0, got {steps} instead.")
    travel = TRAVEL["budget" if has_budget else "penalty"]
    if isinstance(generator, BoundedGenerator):
        own = copy.deepcopy(generator).to("cpu")  # so that all ranks compute bit-identical rates
        if has_budget:
            own.start_from(first_scores_alike(sum(own.sizes)))
        travel = rates_to_travel(own, travel, max(steps, 1), betas)
    return travel / max(steps, 1)


def rates_to_travel(
    generator: BoundedGenerator, travel: float, steps: int, betas: tuple[float, float] = BETAS
) -> float:
    """Return the sum of the learning rates with which an equal gradient on all gates lowers mean log α by ``travel``.

    If the bound is closer than ``travel``, the rates are those for the reachable part of the distance.
    """
    start = float(generator().detach().mean())
    wanted = min(travel, _FARTHEST * (start + generator.preset.bound))
    low, high = 0.0, math.inf
    total = wanted / generator.preset.bound
    for _ in range(_TRIES):
        found = _travelled(generator, total, steps, betas)
        if abs(found - wanted) <= _TOLERANCE * wanted:
            break
        low, high = (total, high) if found < wanted else (low, total)
        guess = total * wanted / found if found > 0 else 2 * total  # assumes that the distance is proportional
        middle = 2 * low if math.isinf(high) else (low + high) / 2
        total = guess if low < guess < high and guess < 4 * max(low, total / 4) else middle
    return total * travel / wanted


def _travelled(generator: BoundedGenerator, total: float, steps: int, betas: tuple[float, float]) -> float:
    """Return how far the mean of log α falls if the learning rates add up to ``total``."""
    own, few = copy.deepcopy(generator), min(steps, _STEPS)
    memories = tuple(beta ** (steps / few) for beta in betas)  # one long step replaces several short ones
    adam = torch.optim.Adam(own.parameters(), lr=total / few, betas=(memories[0], memories[1]))
    start = float(own().detach().mean())
    for _ in range(few):
        adam.zero_grad()
        own().mean().backward()
        adam.step()
    return start - float(own().detach().mean())


def first_scores_alike(gates: int) -> Tensor:
    """Return scores as at the start of a search with a budget: mean 0 and standard deviation 1, in random order."""
    places = torch.randperm(gates, generator=torch.Generator().manual_seed(0)).double()
    scores: Tensor = torch.special.ndtri((places + 0.5) / gates)
    return scores.float()
