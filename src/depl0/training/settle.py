"""The end of a search: its gates are frozen, within the budget, and what that costs is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.pruning.freeze import freeze, freeze_by
from depl0.pruning.latency_budget import latency_frozen
from depl0.pruning.statistics import mean_loss, reestimate, restore, statistics_of
from depl0.runtime.engine import share_buffers
from depl0.runtime.processes import check_same
from depl0.training.compaction import note_event
from depl0.training.evaluate import evaluate
from depl0.training.loop import Session
from depl0.training.setup import task_loss

STATISTICS_BATCHES = 32
_STATISTICS_EPOCH, _JUDGING_EPOCH = 1_000_001, 1_000_002
"""epoch numbers that no training reaches: their batches are for statistics, and for judging them"""


def settle(session: Session, gated: GatedModel, epoch: float, scores: Tensor | None = None) -> None:
    """Freeze the gates, by ``scores`` where a method gives them; write down the accuracy before and after."""
    target, history = session.recipe.target, session.history
    before = evaluate(session.engine, gated, session.data.test.epoch(0))
    rules: Any = {"remove_blocks": target.remove_blocks, "round_to": target.round_to}
    if target.budget is not None and target.of == "latency":
        frozen, history["latency"] = latency_frozen(session.engine, gated, target.budget, scores, **rules)
    elif scores is None or target.budget is None:
        frozen = freeze(gated, target.budget, target.of, **rules)
    else:
        frozen = freeze_by(gated, scores, target.budget, target.of, **rules)
    renewed = _renew_statistics(session, gated)
    after = evaluate(session.engine, gated, session.data.test.epoch(0))
    history["gates"] = frozen.gates.tolist()
    check_same(session.engine, "which gates are open", json.dumps(history["gates"]))
    history["freezing"] = {
        "accuracy_before": before,
        "accuracy_after": after,
        "gates_closed": frozen.forced,
        "statistics": "renewed" if renewed else "kept",
    }
    note_event(session, "freezing", epoch, **history["freezing"])
    share = gated.share_of(frozen.gates, target.of)
    session.reporter.note(f"gates frozen: {share:.1%} of the {target.of} left, accuracy {after:.2f} %")


def _renew_statistics(session: Session, gated: GatedModel) -> bool:
    """Measure batch norms' statistics anew for the frozen gates, and keep them if other training images say so."""
    before = statistics_of(gated.host)
    if not before:
        return False
    judge = partial(_few_batches, session, _JUDGING_EPOCH)
    loss = task_loss(session.recipe)
    loss_before = mean_loss(gated, judge(), loss)
    reestimate(gated, _few_batches(session, _STATISTICS_EPOCH))
    share_buffers(session.engine, gated)
    losses = session.engine.reduce(torch.stack([loss_before, mean_loss(gated, judge(), loss)]), reduction="mean")
    helps = bool(losses[1] < losses[0])
    if not helps:
        restore(gated.host, before)
    return helps


def _few_batches(session: Session, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    return islice(session.data.train.epoch(epoch), STATISTICS_BATCHES)
