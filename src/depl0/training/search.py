"""The search: weights and gates are trained together, and cost closes gates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.methods import Scored
from depl0.pruning.importance import taylor_scores
from depl0.pruning.latency_budget import latency_share
from depl0.runs.gate_log import gates_line
from depl0.runtime.guard import diverged
from depl0.training.compaction import Watch
from depl0.training.ema import Average
from depl0.training.loop import Phase, Session, run_phase
from depl0.training.optimizers import search_optimizers
from depl0.training.penalised import Penalised
from depl0.training.scored import final_scores, scored_phase
from depl0.training.settle import settle
from depl0.training.setup import method_of, task_loss

IMPORTANCE_BATCHES = 32
_IMPORTANCE_EPOCH = 1_000_000
"""an epoch number that no training reaches: its batches are for the importance scores"""


def search(session: Session, gated: GatedModel) -> Tensor | None:
    """Train what the method wants trained; return the scores of the gates, where it gives them any."""
    recipe, method = session.recipe, method_of(session.recipe)
    if not isinstance(method, Scored):
        run_phase(session, search_phase(session, gated))
        release(session, gated)
        return None
    its_loss = task_loss(recipe)
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    if recipe.search_epochs > 0:
        phase = scored_phase(session, gated, method, its_loss)
        phase.describe = lambda: describe_gates(gated, None)
        run_phase(session, phase)
    return final_scores(session, gated, method, its_loss, importance_batches(session))


def search_phase(session: Session, gated: GatedModel) -> Phase:
    """The paper's algorithm: weights and gates are trained together, and cost closes gates."""
    recipe, target = session.recipe, session.recipe.target
    optimizers = search_optimizers(recipe, gated.weight_parameters(), gated.generator, session.data.train.steps)
    its_loss = task_loss(recipe)
    warmup, history = recipe.search.gate_warmup, session.history
    if not history.get("released"):
        gated.fix_gates(torch.ones(gated.plan.num_gates))
    elif "gates" in history:  # frozen before the search was over
        gated.fix_gates(torch.tensor(history["gates"]))
    if gated.budget is not None:
        gated.budget.expect_steps(round((1 - warmup) * recipe.search.epochs * session.data.train.steps))

    def before_step(fraction: float) -> None:
        if fraction < warmup:
            return
        release(session, gated)
        if gated.budget is not None:
            left = 1 - warmup
            gated.budget.advance((fraction - warmup) / left, recipe.search.ramp / left)

    def loss(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        if target.penalty_weight is None:
            task = its_loss(outputs, labels)
            return task, task
        outputs, penalty = outputs
        task = its_loss(outputs, labels)
        counts = history.get("released") and "gates" not in history
        return (task + target.penalty_weight * penalty if counts else task), task

    average = Average(gated.host, recipe.search.ema_decay) if recipe.search.ema_decay is not None else None
    phase = Phase(
        "search",
        gated,
        optimizers,
        recipe.search.epochs,
        loss,
        before_step=before_step,
        describe=lambda: describe_gates(gated, target.penalty_weight),
        gates=lambda: gates_line(gated),
        clip_norm=recipe.search.clip_norm,
        average=average,
        distillation=session.distillation,
        some_rest=(warmup > 0 and not history.get("released")) or "gates" in history,
        run=Penalised(gated, target.penalty) if target.penalty_weight is not None else None,
    )
    phase.rebuild = Watch(session, gated, phase, lambda epoch: settle(session, gated, epoch)).look
    return phase


def release(session: Session, gated: GatedModel) -> None:
    """End the warm-up: let the gates go, with scores from what the network has learned by then. Only once in a run."""
    if not session.history.get("released"):
        gated.free_gates()
        _start_from_importance(session, gated)
        session.history["released"] = True


def _start_from_importance(session: Session, gated: GatedModel) -> None:
    """Give the gates their first scores from a network that has learned something already."""
    recipe = session.recipe
    has_learned = bool(recipe.model.weights) or (recipe.search.gate_warmup > 0 and recipe.search.epochs > 0)
    if gated.budget is None or recipe.gates.importance == "none" or not has_learned:
        return
    scores = session.engine.reduce(
        taylor_scores(gated, importance_batches(session), task_loss(recipe), recipe.target.of), reduction="mean"
    )
    if not bool(scores.isfinite().all()):
        raise diverged(f"the importance of the gates is no number at step {session.global_step}.")
    gated.start_from(scores)


def importance_batches(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the training images by which channels are judged."""
    return islice(session.data.train.epoch(_IMPORTANCE_EPOCH), IMPORTANCE_BATCHES)


def describe_gates(gated: GatedModel, penalty_weight: float | None) -> dict[str, Any]:
    """Return the state of the gates for ``metrics.jsonl``."""
    probability = gated.open_probability().detach()
    expected, kept, dense = gated.expected_cost(), gated.kept_cost(), gated.dense_cost
    is_open = gated.evaluation_gates() > 0
    multiplier = penalty_weight
    if gated.budget is not None:
        multiplier = float(gated.budget.shift.exp())
    return {
        "expected": {
            "macs": expected.macs,
            "params": expected.params,
            "macs_share": expected.macs / dense.macs,
            "params_share": expected.params / dense.params,
            **latency_share(gated, probability),
        },
        "kept": {
            "macs": kept.macs,
            "params": kept.params,
            "macs_share": kept.macs / dense.macs,
            "params_share": kept.params / dense.params,
        },
        "open_gates": {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups},
        "undecided": float(((probability > 0.1) & (probability < 0.9)).float().mean()),
        "lambda": multiplier,
    }
