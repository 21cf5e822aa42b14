"""A complete run: search with gates, freeze, extract, fine-tune, and write the summary."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import depl0.surgery.files as files
from depl0._util.progress import check_stop
from depl0.app.recipes.recipe import Recipe, distill_share
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.paths import resolve_paths
from depl0.app.runs.progress import Quiet, Reporter
from depl0.app.runtime.accelerator import make_accelerator
from depl0.app.runtime.processes import stoppable
from depl0.app.training.answers import right_in_classes
from depl0.app.training.evaluate import final_scores
from depl0.app.training.finalize import finalize, record_for
from depl0.app.training.loop import run_phase
from depl0.app.training.optimizers import finetune_optimizer, weight_optimizer
from depl0.app.training.phase import PlainPhase
from depl0.app.training.preflight import check_above_chance, choose_layout, header, steps_by_phase
from depl0.app.training.recovery import recover
from depl0.app.training.search import record_cut, search
from depl0.app.training.session import Session, open_session
from depl0.app.training.setup import budget_warnings, gated_network, model_factory, open_data_for, with_preprocessing
from depl0.gated import GatedModel
from depl0.search.recovery.distillation import DistillationLoss
from depl0.search.state import Cut
from depl0.surgery.record import apply_record, remember


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
    recipe = with_preprocessing(recipe, Path(out or ""))
    folder, goes_on = open_run(out, recipe, resume)
    said = reporter or Quiet()
    done = folder.finished(said.note) if goes_on else None
    if done is None:
        with stoppable(folder):
            done = _prune(recipe, folder, goes_on, resume, said)
    return folder, done


def _prune(recipe: Recipe, folder: RunFolder, goes_on: bool, resume: bool, reporter: Reporter) -> dict[str, Any]:
    accelerator = make_accelerator(recipe, folder.path)
    said = reporter if accelerator.is_main_process else Quiet()
    written, recipe = recipe, resolve_paths(recipe, folder.path)  # a run may be resumed from another folder
    said.note(f"opening {recipe.data.spec} …")
    data = open_data_for(recipe, accelerator.device, accelerator.process_index, accelerator.num_processes)
    check_stop()
    make_host = model_factory(recipe, data)
    said.note(f"analysing {recipe.model.spec} …")
    gated, example, start = gated_network(recipe, accelerator, data, make_host)
    check_stop()
    with open_session(written, accelerator, data, folder, goes_on=goes_on, resume=resume, reporter=reporter) as session:
        session.trained = start.trained
        choose_layout(session, gated.host)
        for note in (header(session, gated), *start.notes, *budget_warnings(recipe, gated)):
            session.reporter.note(note)
        session.reporter.plan(steps_by_phase(session))
        session.distillation = _teacher(session, gated.host)
        dense = _dense_copy(session, gated.host)
        _measure_dense(session, gated.host)
        if session.is_past("search"):
            compact = _finetune_from_checkpoint(session, gated, make_host, dense)
        else:
            search(session, gated)
            compact = _extract_and_finetune(session, gated, dense)
        return finalize(session, gated, compact, example, dense)


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
        blocks=recipe.distill_blocks,
        soft=session.task.distill,
    )


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
        state.dense_right = right_in_classes(session, dense)
    if scores is not None:
        state.dense_score, state.dense_validation = scores
    state.has_dense_score = True


def dense_phase(session: Session, host: nn.Module) -> PlainPhase:
    """Return training without gates, for as long as search and fine-tuning take together."""
    recipe = session.recipe
    epochs = recipe.search.epochs + recipe.finetune.epochs
    optimizers = [weight_optimizer(recipe, host.parameters(), epochs)]
    return PlainPhase("dense", host, optimizers, epochs, session.task, clip_norm=recipe.search.clip_norm)


def _dense_copy(session: Session, host: nn.Module) -> nn.Module | None:
    """Return a copy for recovery and comparison; None if the dense network is not trained."""
    if session.recipe.finetune.recover > 0 and not session.trained:
        session.reporter.note("no recovery: the dense network is not trained")
    return copy.deepcopy(host) if session.trained else None


def _extract_and_finetune(session: Session, gated: GatedModel, dense: nn.Module | None) -> nn.Module:
    """Return the fine-tuned compact network of a search that has just ended."""
    if not _finetunes_gated(session.recipe):
        compact = _extracted(session, gated, dense)
        session.state.record = json.dumps(files.record_to_json(record_for(compact)))
        finetune(session, compact, compact)
        return compact
    gates = torch.tensor(session.state.frozen_gates)
    closed = gates == 0
    if session.recipe.search.cut != "never" and bool((closed & ~gated.removed).any()):
        gated.remove(closed)
        gated.cut()
        share = gated.expected.rounded(gated.kept.float()).macs / gated.dense_cost.macs
        record_cut(session, Cut(session.global_step, share, int(gated.removed.sum())), "finetune", 0.0)
    gated.fix_gates(gates)
    finetune(session, gated, gated.host)
    return _extracted(session, gated, dense)


def _extracted(session: Session, gated: GatedModel, dense: nn.Module | None) -> nn.Module:
    """Return the compact network, recovered if the recipe requests it."""
    recipe, compact = session.recipe, gated.extract()
    is_quick = recipe.search_epochs + recipe.finetune_epochs == 0
    if dense is not None and (is_quick or recipe.finetune.recover > 0):
        recover(session, compact, dense)
    return compact


def _finetune_from_checkpoint(
    session: Session, gated: GatedModel, make_host: Callable[[], nn.Module], dense: nn.Module | None
) -> nn.Module:
    """Return the compact network of a resumed run whose search had finished before the checkpoint."""
    if _finetunes_gated(session.recipe):
        finetune(session, gated, gated.host)
        return _extracted(session, gated, dense)
    compact = _rebuild(session, make_host)
    finetune(session, compact, compact)
    return compact


def _finetunes_gated(recipe: Recipe) -> bool:
    return recipe.finetune.gated or recipe.search.cut == "never"


def _rebuild(session: Session, make_host: Callable[[], nn.Module]) -> nn.Module:
    """Cut a new network as before the run stopped; its values come from the checkpoint."""
    compact = make_host().to(session.accelerator.device)
    record = files.record_from_json(json.loads(session.state.record or "{}"), session.folder.path)
    apply_record(compact, record)
    remember(compact, record)
    return compact


def finetune(session: Session, model: nn.Module, trained: nn.Module) -> None:
    """Continue training with a fixed structure. ``trained`` holds the weights: the host if ``model`` is gated."""
    recipe = session.recipe
    if recipe.finetune_epochs == 0:
        return
    scheduled = finetune_optimizer(recipe, trained.parameters())
    phase = PlainPhase(
        "finetune",
        model,
        [scheduled],
        recipe.finetune_epochs,
        session.task,
        clip_norm=recipe.search.clip_norm,
        distillation=session.distillation,
        find_unused_parameters=recipe.run.compile and trained is not model,
    )
    run_phase(session, phase)
