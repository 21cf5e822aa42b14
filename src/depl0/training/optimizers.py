"""The paper's two optimizers: SGD with momentum for the weights, Adam for the gates, fused where torch can."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from depl0.generators import BoundedGenerator, Generator
from depl0.recipes.recipe import Recipe
from depl0.training.loop import Rated
from depl0.training.schedules import make_schedule

TRAVEL = {"budget": 4.0, "penalty": 8.0}
"""How far a gate's score (with a budget: in standard deviations) or log α (with a penalty) should be able to move in a
whole search. Adam moves a parameter by its rate each step at most, so the rate follows from the number of steps."""


def search_optimizers(
    recipe: Recipe, weights: Iterable[nn.Parameter], generator: Generator, steps_per_epoch: int
) -> list[Rated]:
    """Return the optimizers of a search."""
    epochs, gates = recipe.search.epochs, recipe.gate_optimizer
    lr = gates.lr if gates.lr is not None else gate_rate(recipe, generator, epochs * steps_per_epoch)
    adam = torch.optim.Adam(list(generator.parameters()), lr=lr, betas=gates.betas, fused=_can_fuse(generator))
    schedule = make_schedule(gates.schedule, epochs, gates.milestones, gates.factor)
    return [weight_optimizer(recipe, weights, epochs), Rated("gate", adam, lr, schedule)]


def gate_rate(recipe: Recipe, generator: Generator, steps: int) -> float:
    """Return the gate learning rate for a search of this many steps."""
    travel = TRAVEL["budget" if recipe.target.budget is not None else "penalty"]
    per_rate = 2.0 * generator.preset.bound if isinstance(generator, BoundedGenerator) else 1.0
    return travel / per_rate / max(steps, 1)


def weight_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter], epochs: int) -> Rated:
    """Return SGD as the search uses it."""
    settings = recipe.weight_optimizer
    schedule = make_schedule(
        settings.schedule, epochs, settings.milestones, settings.factor, warmup_epochs=settings.warmup_epochs
    )
    return Rated("weight", _sgd(recipe, weights, settings.lr, settings.weight_decay), settings.lr, schedule)


def finetune_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter]) -> Rated:
    """Return SGD as fine-tuning uses it."""
    settings, lr = recipe.finetune, recipe.finetune_lr
    schedule = make_schedule(settings.schedule, recipe.finetune_epochs, settings.milestones, settings.factor)
    return Rated("weight", _sgd(recipe, weights, lr, recipe.finetune_weight_decay), lr, schedule)


def _sgd(recipe: Recipe, weights: Iterable[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.SGD:
    settings, parameters = recipe.weight_optimizer, list(weights)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=weight_decay,
        fused=all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters),
    )


def _can_fuse(module: nn.Module) -> bool:
    return all(p.device.type in ("cpu", "cuda") for p in module.parameters())
