"""A complete run: search with gates, freeze, extract, recover, fine-tune, and write the summary."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

import depl0.surgery.files as files
from depl0._util.distributed import broadcast_buffers, broadcast_parameters
from depl0._util.progress import check_stop
from depl0.app.recipes.recipe import Recipe, distill_share
from depl0.app.runs.folder import RunFolder, default_folder, open_run
from depl0.app.runs.progress import Reporter, shown_as
from depl0.app.runtime.execution import set_channels_last, threads_by_work
from depl0.app.runtime.processes import make_accelerator, stoppable
from depl0.app.tasks.classification import Classification, Segmentation
from depl0.app.training.evaluate import correct_by_class, evaluate, final_scores
from depl0.app.training.finalize import finalize
from depl0.app.training.loop import run_phase
from depl0.app.training.optimizers import finetune_optimizer, weight_optimizer
from depl0.app.training.phase import PlainPhase
from depl0.app.training.preflight import check_above_chance, header, steps_by_phase
from depl0.app.training.search import calibration, record_cut, search
from depl0.app.training.session import Session, open_session
from depl0.app.training.setup import (
    gated_network,
    model_factory,
    open_data_for,
    preprocessing_of,
    with_preprocessing,
)
from depl0.app.training.tracking import check_installed
from depl0.gated import GatedModel
from depl0.search.calibration import MOST_INPUTS, Calibration
from depl0.search.one_shot import note_agreement
from depl0.search.recovery.distillation import BLOCKS, DistillationLoss
from depl0.search.recovery.outputs import compare_by, measure_agreement
from depl0.search.recovery.self_distillation import VALUE_BLOCKS, distill
from depl0.surgery.record import record_of, remember
from depl0.surgery.slicing import cut_to

JUDGING_INPUTS = 256
_FIRST_EPOCH = 2_000_000
"""epoch of the training data during recovery; those of a search start from 0"""


def prune(
    recipe: Recipe,
    out: str | None = None,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> tuple[RunFolder, dict[str, Any]]:
    """Run a recipe in a run folder; return the folder and the summary that was written there.

    Args:
        recipe: the recipe.
        out: the run folder; None: a new folder in ``runs/``.
        resume: whether to continue the run in the folder, if there is one.
        reporter: shows progress.

    Raises:
        InputError: the recipe does not fit the network, the data or the folder.
        TrainingError: training was interrupted or diverged; the folder holds the last checkpoint, if any.
    """
    reporter = reporter or Reporter()
    path = Path(out) if out else default_folder(recipe.name, resume)
    recipe = with_preprocessing(recipe, preprocessing_of(recipe))
    folder, goes_on = open_run(path, recipe, resume)
    done = folder.summary() if goes_on else None
    if done is not None:
        return folder, done
    with stoppable(folder), threads_by_work() as choose_threads:
        accelerator = make_accelerator(recipe)
        reporter = reporter if accelerator.is_main_process else Reporter()
        check_installed(recipe.run.trackers)
        reporter.note(f"opening {recipe.data.spec} …")
        data = open_data_for(recipe, accelerator.device, accelerator.process_index, accelerator.num_processes)
        check_stop()
        make_host = model_factory(recipe, data)
        reporter.note(f"analysing {recipe.model.spec} …")
        gated, example, start = gated_network(recipe, accelerator, data, make_host, choose_threads)
        check_stop()
        begun = open_session(recipe, accelerator, data, folder, goes_on=goes_on, resume=resume, reporter=reporter)
        with begun as session:
            session.trained = start.trained
            if recipe.run.channels_last:
                set_channels_last(gated.host)
            for note in (header(session, gated), *start.notes):
                session.reporter.note(note)
            session.reporter.plan(steps_by_phase(session))
            session.distillation = _teacher(session, gated.host)
            dense = _dense_copy(session, gated.host)
            _measure_dense(session, gated.host)
            is_past = session.is_past("search")
            if not is_past:
                search(session, gated)
            compact = _extract_and_finetune(session, gated, dense, make_host if is_past else None)
            return folder, finalize(session, gated, compact, example, dense)


# -- the dense network -----------------------------------------------------------------------------------------------


def _teacher(session: Session, host: nn.Module) -> DistillationLoss | None:
    """Return the dense network as a teacher if the recipe uses distillation and something is trained."""
    recipe = session.recipe
    weight = distill_share(recipe, session.task)
    if weight == 0 or recipe.search.epochs + recipe.finetune.epochs == 0:
        return None
    if not session.trained:
        session.reporter.note("no distillation: the dense network's new head is not trained")
        return None
    if recipe.distill.weight is None:
        session.reporter.note(f"distilling: {weight:g} of the loss is the dense network's (distill.weight = 0: none)")
    return DistillationLoss(
        copy.deepcopy(host),
        weight=weight,
        temperature=recipe.distill.temperature,
        blocks=recipe.distill.blocks,
        soft=session.task.distill,
    )


def _dense_copy(session: Session, host: nn.Module) -> nn.Module | None:
    """Return a copy for recovery and comparison; None if the dense network is not trained."""
    if session.recipe.finetune.recover > 0 and not session.trained:
        session.reporter.note("no recovery: the dense network is not trained")
    return copy.deepcopy(host) if session.trained else None


def _measure_dense(session: Session, host: nn.Module) -> None:
    """Measure the dense network, unchanged or trained for as long as the complete run."""
    recipe, state, metric = session.recipe, session.state, session.task.metric
    if session.is_past("dense") or state.has_dense_score:
        return
    scores = None
    if session.trained:
        scores = final_scores(session.accelerator, host, session.data, session.task)
        shown, split = (scores.test, "") if scores.validation is None else (scores.validation, "validation ")
        session.reporter.note(f"dense network: {split}{metric.label} {metric.show(shown)}")
        check_above_chance(session, shown)
    elif recipe.search.dense_baseline and recipe.search.epochs + recipe.finetune.epochs > 0:
        dense = copy.deepcopy(host)
        run_phase(session, dense_phase(session, dense))
        scores = final_scores(session.accelerator, dense, session.data, session.task)
        state.dense_right = correct_by_class(session, dense)
    if scores is not None:
        state.dense_score, state.dense_validation = scores
    state.has_dense_score = True


def dense_phase(session: Session, host: nn.Module) -> PlainPhase:
    """Return training without gates, for as long as search and fine-tuning take together."""
    recipe = session.recipe
    epochs = recipe.search.epochs + recipe.finetune.epochs
    optimizers = [weight_optimizer(recipe, host.parameters(), epochs)]
    return PlainPhase("dense", host, optimizers, epochs, session.task, clip_norm=recipe.search.clip_norm)


# -- the pruned network ----------------------------------------------------------------------------------------------


def _extract_and_finetune(
    session: Session, gated: GatedModel, dense: nn.Module | None, make_host: Callable[[], nn.Module] | None
) -> nn.Module:
    """Return the fine-tuned compact network of a search.

    ``make_host`` is given for a resumed run whose search had finished before the checkpoint.
    """
    recipe = session.recipe
    if recipe.finetune.gated or recipe.search.cut == "never":
        if make_host is None:
            _cut_closed(session, gated)
        finetune(session, gated, gated.host)
        return _extracted(session, gated, dense)
    if make_host is None:
        compact = _extracted(session, gated, dense)
        record = record_of(compact)
        assert record is not None, "it was just extracted"
        session.state.record = json.dumps(files.record_to_json(record))
    else:
        compact = _rebuild(session, make_host)
    finetune(session, compact, compact)
    return compact


def _cut_closed(session: Session, gated: GatedModel) -> None:
    """Fix the frozen gates for fine-tuning, and remove closed channels unless the recipe keeps them."""
    gates = torch.tensor(session.state.frozen_gates)
    closed = gates == 0
    if session.recipe.search.cut != "never" and bool((closed & ~gated.removed).any()):
        gated.remove(closed)
        gated.cut()
        record_cut(session, gated, "finetune", 0.0)
    gated.fix_gates(gates)


def _extracted(session: Session, gated: GatedModel, dense: nn.Module | None) -> nn.Module:
    """Return the compact network, recovered if the recipe requests it."""
    recipe, compact = session.recipe, gated.extract()
    is_quick = recipe.search_epochs + recipe.finetune_epochs == 0
    if dense is not None and (is_quick or recipe.finetune.recover > 0):
        _recover(session, compact, dense)
    return compact


def _rebuild(session: Session, make_host: Callable[[], nn.Module]) -> nn.Module:
    """Cut a new network as before the run stopped; its values come from the checkpoint."""
    compact = make_host().to(session.accelerator.device)
    record = files.record_from_json(json.loads(session.state.record or "{}"), session.folder.path)
    cut_to(compact, record.positions, record.replacements)
    remember(compact, record)
    return compact


def finetune(session: Session, model: nn.Module, trained: nn.Module) -> None:
    """Continue training with a fixed structure. ``trained`` holds the weights: the host if ``model`` is gated."""
    recipe = session.recipe
    if recipe.finetune_epochs == 0:
        return
    phase = PlainPhase(
        "finetune",
        model,
        [finetune_optimizer(recipe, trained.parameters())],
        recipe.finetune_epochs,
        session.task,
        clip_norm=recipe.search.clip_norm,
        distillation=session.distillation,
    )
    run_phase(session, phase)


# -- recovery without labels -----------------------------------------------------------------------------------------


def _recover(session: Session, compact: nn.Module, dense: nn.Module) -> None:
    """Distill the compact network from the dense network, for at most as many steps as in the recipe.

    It is evaluated on validation images, or on training images if there are none. Agreement is measured at the end, on
    images that are not used in training.
    """
    data, steps, reporter, task = session.data, session.recipe.finetune.recover, session.reporter, session.task
    if steps > 0:
        reporter.note(
            f"recovering from the dense network's answers: at most {steps} steps (finetune.recover = 0: none)"
        )
        judging = calibration(session).judge if data.validation is None else data.validation.epoch(0)
        with shown_as(reporter, "recovery"):
            done = distill(
                compact,
                dense,
                _TrainingInputs(session),
                Calibration(judging, (), (), task.loss).inputs(JUDGING_INPUTS),
                steps=steps,
                soft=task.distill if task.distills else None,
                blocks=BLOCKS if task.distills else VALUE_BLOCKS,
            )
        broadcast_parameters(compact)  # each process has used different data
        broadcast_buffers(compact)
        score = evaluate(session.accelerator, compact, data.for_choices.epoch(0), task)
        losses = {"loss_before": done.before, "loss_after": done.after}
        figures: dict[str, Any] = {"steps": done.steps, **losses, task.metric.name: score}
        session.log_event("recovery", session.epoch, **figures)
        shown = f"{task.metric.label} {task.metric.show(score)}"
        reporter.note(f"recovered in {done.steps} steps: loss {done.before or 0:.3g} -> {done.after or 0:.3g}, {shown}")
    inputs = Calibration(data.for_choices.epoch(0), (), (), task.loss).inputs(MOST_INPUTS)
    has_classes = isinstance(task, (Classification, Segmentation))
    comparison = compare_by(dense, inputs[0], 1 if has_classes else "auto")
    note_agreement(compact, measure_agreement(compact, dense, inputs, comparison))


@final
class _TrainingInputs:
    """Inputs of the training data with the recipe's augmentation, epoch after epoch."""

    def __init__(self, session: Session) -> None:
        self._train = session.data.train

    def __iter__(self) -> Iterator[Any]:
        for epoch in count(_FIRST_EPOCH):
            yield from (inputs for inputs, _ in self._train.epoch(epoch))
