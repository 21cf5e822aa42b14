"""The search of a run: :class:`depl0.Search` in our own loop, with what it does written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, final

import torch

from depl0.app.methods import Scored
from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.gate_log import dependency_of, describe_gates, gates_line
from depl0.app.runs.state import CompactionRecord, FreezingRecord
from depl0.app.runtime.processes import check_same
from depl0.app.training.ema import Average
from depl0.app.training.evaluate import evaluate
from depl0.app.training.loop import run_phase
from depl0.app.training.optimizers import search_optimizers
from depl0.app.training.penalised import Penalised
from depl0.app.training.phase import Losses, Phase, PhaseName, Scheduled
from depl0.app.training.scored import final_scores, scored_phase
from depl0.app.training.session import Session
from depl0.app.training.setup import method_of
from depl0.gated import GatedModel
from depl0.gates.threshold import COSTS
from depl0.search.calibration import MOST_BATCHES, Calibration
from depl0.search.freezing import Freezing, freeze_network
from depl0.search.search import Convergence, Cut, Search, SearchConfig, SearchListener

_SCORES_EPOCH, _STATISTICS_EPOCH, _JUDGING_EPOCH = 1_000_000, 1_000_001, 1_000_002
"""epoch numbers that no training reaches: their batches are for calibration"""


def search(session: Session, gated: GatedModel) -> None:
    """Find out which channels stay, by the recipe's method, and freeze the gates accordingly.

    Afterwards the gates of the network are fixed, and ``session.state.frozen_gates`` has them.
    """
    method = method_of(session.recipe)
    if isinstance(method, Scored):
        _search_by_scores(session, gated, method)
        return
    learned = LearnedSearch(session, gated)
    run_phase(session, learned.phase)
    learned.end()


def _search_by_scores(session: Session, gated: GatedModel, method: Scored) -> None:
    """Train as the method wants, score every channel, and keep the best."""
    recipe = session.recipe
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    if recipe.search_epochs > 0:
        phase = scored_phase(session, gated, method)
        phase.describe = lambda: describe_gates(gated, None)
        run_phase(session, phase)
    data = calibration(session)
    scores = final_scores(session, gated, method, data.pairs(data.scores))
    with written_down(session, gated, recipe.search_epochs) as write:
        gated.free_gates()
        write(
            freeze_network(
                gated,
                recipe.target.budget,
                recipe.target.of,
                scores=scores,
                calibration=data,
                compensated=recipe.recovery.compensate,
                renewed=recipe.recovery.renew_statistics,
            )
        )


@final
class LearnedSearch(SearchListener):
    """The paper's algorithm: weights and gates are trained together, and cost closes gates.

    :class:`depl0.Search` decides about the gates; this writes down what it does, and gives the loop its phase.
    """

    def __init__(self, session: Session, gated: GatedModel) -> None:
        recipe, steps = session.recipe, session.data.train.steps
        self._session, self._gated, self._is_over = session, gated, False
        optimizers = search_optimizers(recipe, gated, steps)
        decay = recipe.search.ema_decay
        self._average = Average(gated.host, decay) if decay is not None else None
        if self._average is not None:
            gated.when_shrunk(self._average.carry_over)
        self.engine = Search(
            gated,
            recipe.search.epochs * steps,
            optimizers=[optimizers[0].optimizer],
            calibrate=calibration(session),
            config=search_config(recipe, steps, session.trained),
            listener=self,
        )
        self.phase = self._make_phase(optimizers)

    def _make_phase(self, optimizers: list[Scheduled]) -> Phase:
        recipe, target, gated = self._session.recipe, self._session.recipe.target, self._gated
        has_penalty = target.penalty_weight is not None
        return Phase(
            "search",
            gated,
            optimizers,
            recipe.search.epochs,
            self._losses,
            before_step=self._before_step,
            describe=lambda: describe_gates(gated, target.penalty_weight),
            gates=lambda: gates_line(gated),
            state=self.engine.state_dict,
            load_state=self.engine.load_state_dict,
            clip_norm=recipe.search.clip_norm,
            average=self._average,
            distillation=self._session.distillation,
            some_unused=recipe.search.gate_warmup > 0,
            run=Penalised(gated, target.penalty, target.penalty_scale) if has_penalty else None,
        )

    def _before_step(self) -> bool:
        rebuilt = self.engine.step()
        if rebuilt and self.engine.is_frozen:
            self.phase.some_unused = True  # the generator has nothing to do any more
        return rebuilt

    def _losses(self, outputs: Any, targets: Any) -> Losses:
        weight, loss = self._session.recipe.target.penalty_weight, self._session.task.loss
        if weight is None:
            task = loss(outputs, targets)
            return Losses(task, task, outputs)
        outputs, penalty = outputs
        task = loss(outputs, targets)
        counts = self.engine.is_released and not self.engine.is_frozen
        return Losses(task + weight * penalty if counts else task, task, outputs)

    def end(self) -> None:
        """Freeze the gates, unless that was done when the search converged."""
        self._is_over = True
        if not self.engine.is_frozen:
            self.engine.freeze()

    @property
    def _epoch(self) -> float:
        if self._is_over:
            return self._session.recipe.search_epochs
        return _in_epochs(self.engine.done, self._session.data.train.steps)

    # -- what the search tells -----------------------------------------------------------------------------------------

    def converged(self, convergence: Convergence) -> None:
        """Write it down."""
        session, steps = self._session, self._session.data.train.steps
        epoch, since = _in_epochs(convergence.step, steps), _in_epochs(convergence.since, steps)
        session.state.convergence = {"epoch": epoch, "step": session.global_step, "since_epoch": since}
        session.note_event("convergence", epoch, since_epoch=since)
        session.reporter.note(f"the search has converged: the open gates have stayed since epoch {since:.4g}")

    @contextmanager
    def freezing(self) -> Iterator[None]:
        """Measure before and after, with the running mean as weights where there is one and training goes on."""
        average = None if self._is_over else self._average
        mean = average.swapped_in() if average is not None else nullcontext()
        with mean, written_down(self._session, self._gated, self._epoch) as self._write:
            yield

    def frozen(self, freezing: Freezing) -> None:
        """Write it down."""
        self._write(freezing)

    def cut(self, cut: Cut) -> None:
        """Write it down."""
        note_cut(self._session, cut, "search", self._epoch)


def _in_epochs(step: int, steps_per_epoch: int) -> float:
    epoch, rest = divmod(step, steps_per_epoch)
    return epoch + rest / steps_per_epoch


def note_cut(session: Session, cut: Cut, phase: PhaseName, epoch: float) -> None:
    """Write down that the network has become smaller."""
    session.state.compactions.append(CompactionRecord(epoch, session.global_step, cut.macs_share))
    session.note_event("compaction", epoch, phase, macs_share=cut.macs_share, gates_gone=cut.gates_gone)
    session.reporter.note(f"network made smaller: {cut.macs_share:.1%} of the MACs to train")


@contextmanager
def written_down(session: Session, gated: GatedModel, epoch: float) -> Iterator[Callable[[Freezing], None]]:
    """Measure the network before its gates are frozen, and give what is called with the result afterwards."""
    task, target, state = session.task, session.recipe.target, session.state
    state.dependency = dependency_of(gated).get("dependency")
    before = evaluate(session.engine, gated, session.data.for_choices.epoch(0), task)

    def write(freezing: Freezing) -> None:
        after = evaluate(session.engine, gated, session.data.for_choices.epoch(0), task)
        state.frozen_gates, state.latency = freezing.gates.tolist(), freezing.latency
        check_same(session.engine, "which gates are open", json.dumps(state.frozen_gates))
        renewed = "renewed" if freezing.statistics_renewed else "kept"
        if freezing.compensation is not None:
            renewed = "compensated"
            for refused in freezing.compensation.refused:
                session.reporter.note(f"{refused.layer} is not compensated: {refused.reason}")
        state.freezing = FreezingRecord(before, after, freezing.forced, renewed, session.data.split)
        session.note_event("freezing", epoch, **state.freezing.to_dict(task.metric.name))
        share = gated.share_of(freezing.gates, target.of)
        value = f"{task.metric.label} {task.metric.show(after)}"
        session.reporter.note(f"gates frozen: {share:.1%} of the {COSTS[target.of]} left, {value}")

    yield write


def search_config(recipe: Recipe, steps_per_epoch: int, trained: bool) -> SearchConfig:
    """Return what a recipe says about its search."""
    search = recipe.search
    has_learned = trained or (search.gate_warmup > 0 and search.epochs > 0)
    return SearchConfig(
        warmup=search.gate_warmup,
        ramp=search.ramp,
        cut=recipe.run.compact,
        first_scores=recipe.gates.importance if has_learned else "none",
        dependency=recipe.gates.dependency,
        compensate=recipe.recovery.compensate,
        renew_statistics=recipe.recovery.renew_statistics,
        converged_change=search.converged_change,
        converged_steps=search.converged_epochs * steps_per_epoch,
    )


def calibration(session: Session) -> Calibration:
    """Return training data for scores and statistics; other batches for each."""

    def batches(epoch: int) -> Any:
        return _Epoch(session, epoch)

    return Calibration(batches(_SCORES_EPOCH), batches(_STATISTICS_EPOCH), batches(_JUDGING_EPOCH), session.task.loss)


@final
class _Epoch:
    """The first batches of one epoch of the training data, the same ones each time."""

    def __init__(self, session: Session, epoch: int) -> None:
        self._session, self._epoch = session, epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return islice(self._session.data.train.epoch(self._epoch), MOST_BATCHES)
