"""The paper's two optimizers, SGD with momentum for the weights and Adam for the gates, and their learning rates.

Learning rates are functions only of progress, so that a resumed run needs no scheduler state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import nn

from depl0.app.recipes.recipe import Recipe
from depl0.gated import GatedModel
from depl0.gates.rates import gate_learning_rate


@final
@dataclass(frozen=True)
class Schedule:
    """A factor on the initial learning rate from the number of epochs passed, fractions included.

    Args:
        name: "constant", "step" or "cosine".
        epochs: the length of "cosine".
        milestones: the epochs after which "step" multiplies by ``factor``.
        factor: the factor of "step".
        warmup_epochs: the length of a linear warm-up at the start.
        passed: epochs of the schedule before its first use.

    Example:
        >>> step = Schedule("step", 300, milestones=(60, 120), factor=0.2)
        >>> [round(step(epoch), 3) for epoch in (0, 59.9, 60, 130)]
        [1.0, 1.0, 0.2, 0.04]
    """

    name: str
    epochs: float
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup_epochs: float = 0.0
    passed: int = 0

    def __call__(self, epoch: float) -> float:
        """Return the factor after this number of epochs."""
        epoch = self.passed + epoch
        warm = min(1.0, (epoch + 1e-3) / self.warmup_epochs) if self.warmup_epochs > 0 else 1.0
        return warm * self._shape(epoch)

    def _shape(self, epoch: float) -> float:
        fraction = min(epoch / max(self.epochs, 1e-9), 1.0)
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))
        return 0.5 * (1 + math.cos(math.pi * fraction))


@dataclass
class Scheduled:
    """An optimizer with its initial learning rate and its schedule."""

    name: str
    optimizer: Any
    lr: float
    schedule: Schedule

    def set_rate(self, epoch: float) -> None:
        """Set the learning rate for a point in time, in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule(epoch)


def search_optimizers(recipe: Recipe, gated: GatedModel, steps_per_epoch: int) -> list[Scheduled]:
    """Return the optimizers of a search: the weights' and the gates'."""
    epochs, gates, parameters = recipe.search.epochs, recipe.gate_optimizer, list(gated.generator.parameters())
    steps, has_budget = epochs * steps_per_epoch, gated.config.budget is not None
    lr = gates.lr
    if lr is None:
        lr = gate_learning_rate(gated.generator, steps, has_budget=has_budget)
    adam = torch.optim.Adam(parameters, lr=lr, fused=_can_fuse(parameters))
    schedule = Schedule(gates.schedule, epochs, gates.milestones, gates.factor)
    return [weight_optimizer(recipe, gated.weight_parameters(), epochs), Scheduled("gate", adam, lr, schedule)]


def weight_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter], epochs: int) -> Scheduled:
    """Return the SGD optimizer of the search."""
    settings = recipe.weight_optimizer
    optimizer = _sgd(recipe, weights, settings.lr)
    return Scheduled("weight", optimizer, settings.lr, _weight_schedule(recipe, epochs))


def finetune_optimizer(recipe: Recipe, weights: Iterable[nn.Parameter]) -> Scheduled:
    """Return the SGD optimizer of fine-tuning."""
    settings, lr = recipe.finetune, recipe.finetune_lr
    if recipe.has_one_curve:
        schedule = replace(_weight_schedule(recipe, recipe.search_epochs), passed=recipe.search_epochs)
    else:
        schedule = Schedule(settings.schedule, recipe.finetune_epochs, settings.milestones, settings.factor)
    return Scheduled("weight", _sgd(recipe, weights, lr), lr, schedule)


def _weight_schedule(recipe: Recipe, epochs: int) -> Schedule:
    """Return the schedule of a search of this number of epochs, or of search and fine-tuning if they share a curve."""
    settings = recipe.weight_optimizer
    if recipe.has_one_curve and epochs == recipe.search_epochs:
        epochs += recipe.finetune_epochs
    return Schedule(settings.schedule, epochs, settings.milestones, settings.factor, settings.warmup_epochs)


def _sgd(recipe: Recipe, weights: Iterable[nn.Parameter], lr: float) -> torch.optim.SGD:
    settings, parameters = recipe.weight_optimizer, list(weights)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        fused=_can_fuse(parameters),
    )


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
