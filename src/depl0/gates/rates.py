"""The learning rate of the gates, which follows from the length of the search and from the generator.

Adam moves a parameter by about its rate in each step, so the rate follows from the number of steps: a search should be
able to move every gate by a given distance. How far a step moves a gate differs by generator, because the parts of its
parameters add up: a free gate moves by the rate, others by Σ_θ |∂ log α/∂θ| times the rate, which changes on the way.
So the way is tried once, on a copy of the generator with the same pull on every gate, in a few long steps of Adam. All
generators travel equally far then, and can be compared. Under the published presets, whose tanh is flat at first and
whose groups swing each other, the distance is met roughly; their recipes state the published rates.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from depl0.errors import InputError
from depl0.gates.generators import BoundedGenerator, Generator

TRAVEL = {"budget": 4.0, "penalty": 8.0}
"""How far a gate's score (with a budget: in standard deviations) or log α (with a penalty) should be able to move in a
whole search."""
BETAS = (0.9, 0.999)
"""Adam's own"""

_STEPS = 24
"""in which the way is tried"""
_FARTHEST = 0.9
"""of the way from the start to the bound: beyond, tanh is too flat to tell two ways apart"""
_TOLERANCE = 0.01
_TRIES = 12


def gate_learning_rate(
    generator: Generator, steps: int, *, has_budget: bool, betas: tuple[float, float] = BETAS
) -> float:
    """Return a learning rate for Adam on a generator's parameters in a search of so many steps."""
    if steps < 0:
        raise InputError(f"steps must be at least 0, got {steps} instead.")
    travel = TRAVEL["budget" if has_budget else "penalty"]
    if isinstance(generator, BoundedGenerator):
        own = copy.deepcopy(generator).to("cpu")  # where all processes get the same to the last bit
        if has_budget:
            own.start_from(first_scores_alike(sum(own.sizes)))
        travel = rates_to_travel(own, travel, max(steps, 1), betas)
    return travel / max(steps, 1)


def rates_to_travel(
    generator: BoundedGenerator, travel: float, steps: int, betas: tuple[float, float] = BETAS
) -> float:
    """Return what the rates of all steps must add up to so that an equal pull lowers the mean of log α by so much.

    Where the bound is nearer than that, the way is shorter and the rates are those for a part of the travel.
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
        guess = total * wanted / found if found > 0 else 2 * total  # as if the distance were proportional
        middle = 2 * low if math.isinf(high) else (low + high) / 2
        total = guess if low < guess < high and guess < 4 * max(low, total / 4) else middle
    return total * travel / wanted


def _travelled(generator: BoundedGenerator, total: float, steps: int, betas: tuple[float, float]) -> float:
    """Return how far the mean of log α goes down with rates that add up to a total."""
    own, few = copy.deepcopy(generator), min(steps, _STEPS)
    memories = tuple(beta ** (steps / few) for beta in betas)  # one long step is as many as it stands for
    adam = torch.optim.Adam(own.parameters(), lr=total / few, betas=(memories[0], memories[1]))
    start = float(own().detach().mean())
    for _ in range(few):
        adam.zero_grad()
        own().mean().backward()
        adam.step()
    return start - float(own().detach().mean())


def first_scores_alike(gates: int) -> Tensor:
    """Return scores as a search with a budget begins with: mean 0 and standard deviation 1, in no order."""
    places = torch.randperm(gates, generator=torch.Generator().manual_seed(0)).double()
    scores: Tensor = torch.special.ndtri((places + 0.5) / gates)
    return scores.float()
