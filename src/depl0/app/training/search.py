"""The search of a run, which selects channels by learned gates or by scores, and its record.

:class:`depl0.Search` decides about the gates, and :class:`SearchPhase` drives it from the loop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, fields
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.distributed import all_reduce_mean
from depl0._util.user_code import wrap_user_errors
from depl0.app.data import Batches
from depl0.app.methods import Scored
from depl0.app.methods.calibrated import Reconstruction
from depl0.app.recipes.recipe import Recipe, method_of
from depl0.app.runs.progress import shown_as
from depl0.app.runtime.guard import diverged
from depl0.app.runtime.processes import check_same
from depl0.app.training.evaluate import evaluate
from depl0.app.training.loop import run_phase
from depl0.app.training.optimizers import search_optimizers, weight_optimizer
from depl0.app.training.phase import Losses, Phase, PhaseName
from depl0.app.training.session import Session
from depl0.config import GateConfig, PenaltyKind, PenaltyScale
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates.threshold import COSTS
from depl0.host.copies import isolated_deepcopy
from depl0.search.calibration import MOST_BATCHES, Calibration
from depl0.search.config import SearchConfig
from depl0.search.freezing import Freezing, freeze_network
from depl0.search.rounds import cut_in_rounds
from depl0.search.search import Search
from depl0.select.gates import select_gates

_SCORES_EPOCH, _STATISTICS_EPOCH, _JUDGING_EPOCH = 1_000_000, 1_000_001, 1_000_002
"""epoch numbers that no training reaches, whose batches are used for calibration"""


def search(session: Session, gated: GatedModel) -> None:
    """Select the channels to keep by the recipe's method, and freeze the gates accordingly.

    Afterwards the gates of the network are fixed, and ``session.state.frozen_gates`` has them.
    """
    method = method_of(session.recipe)
    if isinstance(method, Scored):
        _search_by_scores(session, gated, method)
    else:
        phase = SearchPhase(session, gated)
        run_phase(session, phase)
        before = score_before_freezing(session, gated)
        record_freezing(session, gated, phase.search.freeze(), before)


# -- learned gates ---------------------------------------------------------------------------------------------------


@final
class SearchPhase(Phase):
    """The paper's algorithm: weights and gates are trained together, and the cost term closes gates."""

    search: Search

    def __init__(self, session: Session, gated: GatedModel) -> None:
        recipe, penalty, steps = session.recipe, session.recipe.penalty, session.data.train.steps
        super().__init__(
            "search",
            gated,
            search_optimizers(recipe, gated, steps),
            recipe.search.epochs,
            session.task,
            clip_norm=recipe.search.clip_norm,
            distillation=session.distillation,
        )
        self._session, self.gated, self.penalty_weight = session, gated, penalty.weight
        self.search = Search(
            gated,
            recipe.search.epochs * steps,
            optimizers=[self.optimizers[0].optimizer],
            calibrate=calibration(session),
            config=search_config(recipe, session.trained),
        )
        has_penalty = self.penalty_weight is not None
        self._penalised = Penalised(gated, penalty.kind, penalty.scale) if has_penalty else None

    @property
    def called(self) -> nn.Module:
        """Return the gated network, together with its penalty if there is one."""
        return self.model if self._penalised is None else self._penalised

    def losses(self, outputs: Any, targets: Any) -> Losses:
        """Return the task's loss, with the penalty once the gates move."""
        if self.penalty_weight is None:
            task = self.task.loss(outputs, targets)
            return Losses(task, task, outputs)
        outputs, penalty = outputs
        task = self.task.loss(outputs, targets)
        return Losses(task + self.penalty_weight * penalty if self.search.is_released else task, task, outputs)

    def before_step(self) -> bool:
        """Advance the search; returns True if the network shrank."""
        shrank = self.search.step()
        if shrank:
            epoch, rest = divmod(self.search.done - 1, self._session.data.train.steps)
            record_cut(self._session, self.search.gated, "search", epoch + rest / self._session.data.train.steps)
        return shrank


@final
class Penalised(nn.Module):
    """Calls a gated network and its penalty together.

    In one module, both are covered by the accelerator's wrappers for gradient synchronisation.
    """

    def __init__(self, gated: GatedModel, kind: PenaltyKind, scale: PenaltyScale) -> None:
        super().__init__()
        self.gated = gated
        self.kind, self.scale = kind, scale

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        """Return the host's outputs and the expected cost."""
        outputs = self.gated(*args, **kwargs)
        return outputs, self.gated.penalty(self.kind, scale=self.scale)


def search_config(recipe: Recipe, trained: bool) -> SearchConfig:
    """Return the search configuration of a recipe."""
    shared: dict[str, Any] = {field.name: getattr(recipe.search, field.name) for field in fields(SearchConfig)}
    if not trained and recipe.search.warmup * recipe.search.epochs == 0:  # scores would be those of random weights
        shared["first_scores"] = "none"
    return SearchConfig(**shared)


# -- scored channels -------------------------------------------------------------------------------------------------


def _search_by_scores(session: Session, gated: GatedModel, method: Scored) -> None:
    """Train as the method requires, score every channel, and keep the best."""
    recipe = session.recipe
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    if recipe.search_epochs > 0:
        run_phase(session, ScoredPhase(session, gated, method))
    config = gated.config.changed(budget=recipe.gates.budget, of=recipe.gates.of)
    data = calibration(session)
    if isinstance(method, Reconstruction) and recipe.search.compensate and config.budget is not None:
        before = score_before_freezing(session, gated)
        freezing = _cut_in_rounds(session, gated, config, config.budget, data)
    else:
        before, scores = _scored(session, gated, method, data)
        with shown_as(session.reporter, "fitting"):
            freezing = freeze_network(
                gated,
                config,
                scores=method.comparable(gated.plan, scores),
                calibration=data,
                compensated=recipe.search.compensate,
                renewed=recipe.search.renew_statistics,
            )
    record_freezing(session, gated, freezing, before)


def _cut_in_rounds(
    session: Session, gated: GatedModel, config: GateConfig, budget: float, data: Calibration
) -> Freezing:
    """Score, cut and refit in rounds, as :func:`depl0.prune` does."""
    gated.free_gates()
    defaults = GateConfig()
    given = {name for name in ("round_to", "min_share") if getattr(config, name) != getattr(defaults, name)}
    original, inputs = isolated_deepcopy(gated.host), data.inputs()
    with shown_as(session.reporter, "scoring and fitting"):
        for _, freezing in cut_in_rounds(gated, original, inputs, [budget], config, given):
            found = freezing
    return found


def _scored(session: Session, gated: GatedModel, method: Scored, data: Calibration) -> tuple[float, Tensor]:
    """Return the metric of the network with all its channels, and the score of each."""
    rng = torch.Generator().manual_seed(session.recipe.run.seed)
    name = session.recipe.gates.method
    user = wrap_user_errors("method", name, sys.modules[type(method).__module__]) if ":" in name else nullcontext()
    with shown_as(session.reporter, "scoring"), user:
        found = method.scores(gated, data.pairs(data.scores), session.task.loss, rng)
    if not isinstance(found, Tensor) or found.shape != (gated.plan.num_gates,):
        said = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"method {name!r} must give {gated.plan.num_gates} scores, one per gate, got {said} instead.")
    scores = all_reduce_mean(found)
    if not bool(scores.isfinite().all()):
        raise diverged(f"the scores of the gates are not finite at step {session.global_step}.")
    return score_before_freezing(session, gated), scores


@final
class ScoredPhase(Phase):
    """Training of the dense network before its channels are scored, with the method's loss term."""

    gated: GatedModel

    def __init__(self, session: Session, gated: GatedModel, method: Scored) -> None:
        recipe, host = session.recipe, gated.host
        clip_norm = recipe.search.clip_norm
        super().__init__(
            "search",
            host,
            [weight_optimizer(recipe, host.parameters(), recipe.search_epochs)],
            recipe.search_epochs,
            session.task,
            clip_norm=method.clip_norm if clip_norm is None else clip_norm,
            distillation=session.distillation,
        )
        weight = recipe.gates.method_weight
        self.gated, self.method, self.weight = gated, method, method.weight if weight is None else weight
        self._gates = recipe.gates

    def losses(self, outputs: Any, targets: Any) -> Losses:
        """Return the task's loss and the method's term."""
        task, term = self.task.loss(outputs, targets), self.method.term(self.gated)
        return Losses(task if term is None else task + self.weight * term, task, outputs)

    def after_epoch(self) -> None:
        """Apply the method's change of the weights."""
        self.method.after_epoch(self.gated, self._best)

    def _best(self, scores: Tensor) -> Tensor:
        gates = self._gates
        config = self.gated.config.changed(budget=gates.budget, of=gates.of, round_to=1, remove_blocks=False)
        return select_gates(self.gated.snapshot(), config, scores).gates > 0


# -- records ---------------------------------------------------------------------------------------------------------


def score_before_freezing(session: Session, gated: GatedModel) -> float:
    """Return the metric of the network before its gates are frozen."""
    return evaluate(session.accelerator, gated, session.data.for_choices.epoch(0), session.task)


def record_freezing(session: Session, gated: GatedModel, freezing: Freezing, before: float) -> None:
    """Measure the network after its gates were frozen, and record the change."""
    task, of, state = session.task, session.recipe.gates.of, session.state
    after = evaluate(session.accelerator, gated, session.data.for_choices.epoch(0), task)
    state.frozen_gates, state.latency = freezing.gates.tolist(), freezing.latency
    check_same(session.accelerator, "which gates are open", json.dumps(state.frozen_gates))
    statistics, fitted = "renewed" if freezing.statistics_renewed else "kept", []
    if freezing.compensation is not None:
        statistics, fitted = "compensated", [asdict(each) for each in freezing.compensation]
    name = task.metric.name
    state.freezing = {
        f"{name}_before": before,
        f"{name}_after": after,
        "gates_closed": freezing.forced,  # by the budget, although the evaluation rule had them open
        "statistics": statistics,
        "split": session.data.split,
        "fitted": fitted,
    }
    session.log_event("freezing", session.epoch, **state.freezing)
    share = gated.snapshot().share(freezing.gates > 0, of)
    value = f"{task.metric.label} {task.metric.show(after)}"
    session.reporter.note(f"gates frozen: {share:.1%} of the {COSTS[of]} left, {value}")


def record_cut(session: Session, gated: GatedModel, phase: PhaseName, epoch: float) -> None:
    """Record that the network shrank."""
    share = gated.expected.rounded(gated.kept.float()).macs / gated.dense_cost.macs
    session.state.compactions.append({"epoch": epoch, "step": session.global_step, "macs_share": share})
    session.log_event("compaction", epoch, phase, macs_share=share, gates_gone=int(gated.removed.sum()))
    session.reporter.note(f"network shrunk to {share:.1%} of the MACs")


# -- calibration -----------------------------------------------------------------------------------------------------


def calibration(session: Session) -> Calibration:
    """Return training data for scores and statistics, with different batches for each.

    Scores and fits use images without augmentation, because a fit to crops is worse on whole images.
    """
    train = session.data.train
    scores = _Epoch(session.data.train.plain(), _SCORES_EPOCH)
    statistics, judging = _Epoch(train, _STATISTICS_EPOCH), _Epoch(train, _JUDGING_EPOCH)
    return Calibration(scores, statistics, judging, session.task.loss)


@final
class _Epoch:
    """The first batches of one epoch of the training data, identical in every iteration."""

    def __init__(self, batches: Batches, epoch: int) -> None:
        self._batches, self._epoch = batches, epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return islice(self._batches.epoch(self._epoch), MOST_BATCHES)
