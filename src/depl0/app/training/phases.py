"""Training without a search: the dense network, and what is left of it."""

from __future__ import annotations

from functools import partial

from torch import nn

from depl0.app.training.loop import run_phase
from depl0.app.training.optimizers import finetune_optimizer, weight_optimizer
from depl0.app.training.phase import Phase, PhaseName, plain_losses
from depl0.app.training.session import Session
from depl0.gated import GatedModel
from depl0.surgery.shrink import carry_over


def plain_phase(session: Session, name: PhaseName, model: nn.Module, epochs: int) -> Phase:
    """Training without gates: the dense network for comparison."""
    return Phase(
        name,
        model,
        [weight_optimizer(session.recipe, model.parameters(), epochs)],
        epochs,
        plain_losses(session.task.loss),
        clip_norm=session.recipe.search.clip_norm,
    )


def finetune(session: Session, model: nn.Module, trained: nn.Module) -> None:
    """Train on with the structure fixed. ``trained`` is what has the weights: the host, where ``model`` is gated."""
    recipe = session.recipe
    if recipe.finetune_epochs == 0:
        return
    scheduled = finetune_optimizer(recipe, trained.parameters())
    if isinstance(model, GatedModel):  # a checkpoint may bring it to a smaller size
        model.when_shrunk(partial(carry_over, scheduled.optimizer))
    phase = Phase(
        "finetune",
        model,
        [scheduled],
        recipe.finetune_epochs,
        plain_losses(session.task.loss),
        clip_norm=recipe.search.clip_norm,
        distillation=session.distillation,
        some_unused=trained is not model,
    )
    run_phase(session, phase)
