"""The paper's two optimizers: SGD with momentum for the weights, Adam for the gates, fused where torch can."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from depl0.app.recipes.recipe import Recipe
from depl0.app.training.phase import Scheduled
from depl0.app.training.schedules import Schedule, make_schedule
from depl0.gated import GatedModel
from depl0.search.rates import gate_learning_rate


def search_optimizers(recipe: Recipe, gated: GatedModel, steps_per_epoch: int) -> list[Scheduled]:
    """Return the optimizers of a search."""
    epochs, gates, generator = recipe.search.epochs, recipe.gate_optimizer, gated.generator
    lr = gates.lr if gates.lr is not None else gate_learning_rate(gated, epochs * steps_per_epoch, gates.betas)
    adam = torch.optim.Adam(list(generator.parameters()), lr=lr, betas=gates.betas, fused=_can_fuse(generator))
    schedule = make_schedule(gates.schedule, epochs, gates.milestones, gates.factor)
    return [weight_optimizer(recipe, gated.weight_parameters(), epochs), Scheduled("gate", adam, lr, schedule)]


def weight_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter], epochs: int) -> Scheduled:
    """Return SGD as the search uses it."""
    settings = recipe.weight_optimizer
    optimizer = _sgd(recipe, weights, settings.lr, settings.weight_decay)
    return Scheduled("weight", optimizer, settings.lr, _weight_schedule(recipe, epochs))


def finetune_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter]) -> Scheduled:
    """Return SGD as fine-tuning uses it."""
    settings, lr = recipe.finetune, recipe.finetune_lr
    if recipe.has_one_curve:
        whole = _weight_schedule(recipe, recipe.search_epochs)
        schedule: Schedule = lambda epoch: whole(recipe.search_epochs + epoch)  # noqa: E731
    else:
        schedule = make_schedule(settings.schedule, recipe.finetune_epochs, settings.milestones, settings.factor)
    return Scheduled("weight", _sgd(recipe, weights, lr, recipe.finetune_weight_decay), lr, schedule)


def _weight_schedule(recipe: Recipe, epochs: int) -> Schedule:
    """Return the schedule of a search of so many epochs, or of search and fine-tuning where they share a curve."""
    settings = recipe.weight_optimizer
    if recipe.has_one_curve and epochs == recipe.search_epochs:
        epochs += recipe.finetune_epochs
    return make_schedule(
        settings.schedule, epochs, settings.milestones, settings.factor, warmup_epochs=settings.warmup_epochs
    )


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
