"""The whole job: search with gates, freeze, extract, fine-tune, evaluate, write down what happened."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import depl0.surgery.files as files
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.task import distill_share
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.paths import located
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.engine import make_engine
from depl0.app.training.evaluate import final_scores
from depl0.app.training.finalize import conclude, record_for
from depl0.app.training.header import header, time_left
from depl0.app.training.loop import run_phase
from depl0.app.training.phases import finetune, plain_phase
from depl0.app.training.rollback import roll_back
from depl0.app.training.rounding import choose_rounding
from depl0.app.training.run_context import open_session
from depl0.app.training.search import note_cut, search
from depl0.app.training.session import Session
from depl0.app.training.setup import budget_warnings, gated_network, model_factory, open_data_for
from depl0.errors import DivergedError
from depl0.gated import GatedModel
from depl0.search.recovery.distillation import DistillationLoss
from depl0.search.search import Cut
from depl0.surgery.record import apply_record, remember


def prune(
    recipe: Recipe, out: str | None = None, *, resume: bool = False, reporter: Reporter | None = None
) -> tuple[RunFolder, dict[str, Any]]:
    """Carry out a recipe in a run folder; return the folder and the summary that was written there."""
    folder, goes_on = open_run(out, recipe, resume)
    done = folder.finished(reporter.note if reporter else lambda text: None) if goes_on else None
    if done is not None:
        return folder, done
    engine = make_engine(recipe, folder.path)
    written, recipe = recipe, located(recipe, folder.path)  # a run may be continued from another folder
    say = reporter.note if reporter and engine.is_main_process else lambda text: None
    say(f"opening {recipe.data.spec} …")
    data = open_data_for(recipe, engine.device, engine.process_index, engine.num_processes)
    make_host = model_factory(recipe, data)
    say(f"analysing {recipe.model.spec} …")
    gated, example, start = gated_network(recipe, engine, data, make_host)
    host, macs = gated.host, gated.dense_cost.macs
    with open_session(
        written, engine, data, folder, host, macs, goes_on=goes_on, resume=resume, reporter=reporter
    ) as session:
        session.trained = start.trained
        session.reporter.note(header(session, gated))
        for note in (*start.notes, *budget_warnings(recipe, gated)):
            session.reporter.note(note)
        session.distillation = _teacher(session, host)
        time_needed = time_left(session, host)
        if time_needed is not None:
            session.reporter.note(time_needed)
        while True:
            try:
                choose_rounding(session, gated)
                _measure_dense(session, gated.host)
                compact = _search_and_finetune(session, gated, make_host)
                return folder, conclude(session, gated, compact, example)
            except DivergedError as trouble:
                session = roll_back(session, trouble)
                gated, example, _ = gated_network(recipe, engine, data, make_host)


def _teacher(session: Session, host: nn.Module) -> DistillationLoss | None:
    """Return the dense network as a teacher, where the recipe wants one and something is trained."""
    recipe = session.recipe
    weight = distill_share(recipe, session.task)
    if weight == 0 or recipe.search.epochs + recipe.finetune.epochs == 0:
        return None
    if not session.trained:
        session.reporter.note("no distillation: the dense network's new head is not trained")
        return None
    if recipe.search.distill is None:
        session.reporter.note(f"distilling: {weight:g} of the loss is the dense network's (--distill 0: none)")
    return DistillationLoss(
        copy.deepcopy(host),
        weight=weight,
        temperature=recipe.search.distill_temperature,
        blocks=recipe.distill_blocks,
        soft=session.task.distill,
    )


def _measure_dense(session: Session, host: nn.Module) -> None:
    """Write down what the dense network is worth: as it comes, or trained for as long as the whole job takes."""
    recipe, state, metric = session.recipe, session.state, session.task.metric
    if session.is_past("dense") or state.has_dense_score:
        return
    scores = None
    if session.trained:
        scores = final_scores(session.engine, host, session.data, session.task)
        shown, split = (scores.test, "") if scores.validation is None else (scores.validation, "validation ")
        session.reporter.note(f"dense network: {split}{metric.label} {metric.show(shown)}")
    elif recipe.search.dense_baseline and recipe.search.epochs + recipe.finetune.epochs > 0:
        dense = copy.deepcopy(host)
        run_phase(session, plain_phase(session, "dense", dense, recipe.search.epochs + recipe.finetune.epochs))
        scores = final_scores(session.engine, dense, session.data, session.task)
    if scores is not None:
        state.dense_score, state.dense_validation = scores
    state.has_dense_score = True


def _search_and_finetune(session: Session, gated: GatedModel, make_host: Callable[[], nn.Module]) -> nn.Module:
    """Return the compact network: searched, cut and fine-tuned, or what is left to do of that."""
    recipe = session.recipe
    searched = session.is_past("search")
    if not searched:
        search(session, gated)
    if recipe.finetune.gated or recipe.run.compact == "never":
        return _finetune_gated(session, gated, searched)
    compact = _rebuilt(session, make_host) if searched else _extracted(session, gated)
    finetune(session, compact, compact)
    return compact


def _finetune_gated(session: Session, gated: GatedModel, searched: bool) -> nn.Module:
    """Train the gated network with its gates frozen, and extract afterwards."""
    gates = torch.tensor(session.state.frozen_gates)
    if not searched:
        if session.recipe.run.compact != "never":
            _cut_closed(session, gated, gates == 0)
        gated.fix_gates(gates)
    finetune(session, gated, gated.host)
    return gated.extract()


def _cut_closed(session: Session, gated: GatedModel, closed: torch.Tensor) -> None:
    if bool((closed & ~gated.gone).any()):
        gated.close(closed)
        gated.shrink()
        share = gated.cost_without(gated.gone).macs / gated.dense_cost.macs
        note_cut(session, Cut(session.global_step, share, int(gated.gone.sum())), "finetune", 0.0)


def _extracted(session: Session, gated: GatedModel) -> nn.Module:
    compact = gated.extract()
    session.state.record = json.dumps(files.record_to_json(record_for(compact)))
    return compact


def _rebuilt(session: Session, make_host: Callable[[], nn.Module]) -> nn.Module:
    """Cut a fresh network as it was cut before the run stopped; its values come from the checkpoint."""
    compact = make_host().to(session.engine.device)
    record = files.record_from_json(json.loads(session.state.record or "{}"), session.folder.path)
    apply_record(compact, record)
    remember(compact, record)
    return compact
