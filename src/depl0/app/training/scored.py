"""Methods that give scores, in the same harness: the training before the cut, and the scores it ends with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depl0._util.distributed import mean_of_all
from depl0.app.methods import Batches, Scored
from depl0.app.runtime.guard import diverged
from depl0.app.training.ema import Average
from depl0.app.training.optimizers import weight_optimizer
from depl0.app.training.phase import Losses, Phase
from depl0.app.training.session import Session
from depl0.gated import GatedModel
from depl0.select.freeze import open_within


def scored_phase(session: Session, gated: GatedModel, method: Scored) -> Phase:
    """Training of the dense network, without gates, and with what the method adds to it."""
    recipe, host = session.recipe, gated.host
    weight, clip_norm = recipe.gates.method_weight, recipe.search.clip_norm
    weight = method.weight if weight is None else weight

    def loss(outputs: Any, targets: Any) -> Losses:
        task, term = session.task.loss(outputs, targets), method.term(gated)
        return Losses(task if term is None else task + weight * term, task, outputs)

    def keep(scores: Tensor) -> Tensor:
        assert recipe.target.budget is not None  # a recipe has one where its method gives scores
        return open_within(gated, scores, recipe.target.budget, recipe.target.of)

    return Phase(
        "search",
        host,
        [weight_optimizer(recipe, host.parameters(), recipe.search_epochs)],
        recipe.search_epochs,
        loss,
        after_epoch=lambda: method.after_epoch(gated, keep),
        clip_norm=method.clip_norm if clip_norm is None else clip_norm,
        average=Average(host, recipe.search.ema_decay) if recipe.search.ema_decay is not None else None,
        distillation=session.distillation,
    )


def final_scores(session: Session, gated: GatedModel, method: Scored, batches: Batches) -> Tensor:
    """Return the scores of all gates, comparable in the whole network, and the same in all processes."""
    rng = torch.Generator().manual_seed(session.recipe.run.seed)
    scores = mean_of_all(method.scores(gated, batches, session.task.loss, rng))
    if not bool(scores.isfinite().all()):
        raise diverged(f"the scores of the gates are not finite at step {session.global_step}.")
    return method.comparable(gated.plan, scores)
