"""The whole job: search with gates, freeze, extract, fine-tune, evaluate, write down what happened."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import depl0.files as files
from depl0.errors import DivergedError
from depl0.gated import GatedModel
from depl0.recipes.recipe import Recipe
from depl0.runs.folder import RunFolder, open_run
from depl0.runs.progress import Reporter
from depl0.runtime.engine import make_engine
from depl0.surgery.record import apply_record, remember
from depl0.training.compaction import cut, cut_again
from depl0.training.conclude import conclude, record_for
from depl0.training.distill import Distillation
from depl0.training.evaluate import evaluate
from depl0.training.loop import Phase, Session, run_phase
from depl0.training.opening import opened
from depl0.training.optimizers import finetune_optimizer, weight_optimizer
from depl0.training.rollback import roll_back
from depl0.training.search import search
from depl0.training.settle import settle
from depl0.training.setup import gated_network, model_factory, open_data_for, task_loss


def prune(
    recipe: Recipe, out: str | None = None, *, resume: bool = False, reporter: Reporter | None = None
) -> tuple[RunFolder, dict[str, Any]]:
    """Carry out a recipe in a run folder; return the folder and the summary that was written there."""
    folder, goes_on = open_run(out, recipe, resume)
    done = folder.summary() if goes_on else None
    if done is not None:
        return folder, done
    engine = make_engine(recipe, folder.path)
    data = open_data_for(recipe, engine.device, engine.process_index, engine.num_processes)
    make_host = model_factory(recipe, data)
    gated, example = gated_network(recipe, engine, data, make_host)
    host, macs = gated.host, gated.dense_cost.macs
    with opened(recipe, engine, data, folder, host, macs, goes_on=goes_on, resume=resume, reporter=reporter) as session:
        if recipe.search.distill > 0:
            session.distillation = Distillation(host, recipe.search.distill, recipe.search.distill_temperature)
        while True:
            try:
                _measure_dense(session, gated.host)
                compact = _search_and_extract(session, gated, make_host)
                return folder, conclude(session, gated, compact, example)
            except DivergedError as trouble:
                session = roll_back(session, trouble)
                gated, example = gated_network(recipe, engine, data, make_host)


def _measure_dense(session: Session, host: nn.Module) -> None:
    """Write down what the dense network is worth: as it comes, or trained for as long as the whole job takes."""
    recipe, history = session.recipe, session.history
    if session.is_past("dense") or "dense_accuracy" in history:
        return
    history["dense_accuracy"] = None
    if recipe.model.weights:
        history["dense_accuracy"] = evaluate(session.engine, host, session.data.test.epoch(0))
        session.reporter.note(f"dense network: accuracy {history['dense_accuracy']:.2f} %")
    elif recipe.search.dense_baseline and recipe.search.epochs + recipe.finetune.epochs > 0:
        del history["dense_accuracy"]
        epochs = recipe.search.epochs + recipe.finetune.epochs
        dense = copy.deepcopy(host)
        run_phase(session, plain_phase(session, "dense", dense, epochs))
        history["dense_accuracy"] = evaluate(session.engine, dense, session.data.test.epoch(0))


def plain_phase(session: Session, name: str, model: nn.Module, epochs: int) -> Phase:
    """Training without gates: the dense network for comparison."""
    rated = weight_optimizer(session.recipe, model.parameters(), epochs)
    loss = task_loss(session.recipe)
    return Phase(
        name,
        model,
        [rated],
        epochs,
        lambda outputs, labels: (value := loss(outputs, labels), value),
        clip_norm=session.recipe.search.clip_norm,
    )


def _search_and_extract(session: Session, gated: GatedModel, make_host: Callable[[], nn.Module]) -> nn.Module:
    recipe, history = session.recipe, session.history
    stays_gated = recipe.finetune.gated or recipe.run.compact == "never"
    cut_again(session, gated)
    if not session.is_past("search"):
        scores = search(session, gated)
        if "gates" not in history:
            settle(session, gated, recipe.search_epochs, scores)
        if not stays_gated:
            compact = gated.extract(remove_blocks=recipe.target.remove_blocks)
            history["record"] = json.dumps(files.record_to_json(record_for(compact)))
            return finetune(session, compact, compact)
        if recipe.run.compact != "never":
            cut(session, gated, torch.tensor(history["gates"]) == 0, "finetune", 0.0)
    elif not stays_gated:
        compact = make_host().to(session.engine.device)
        record = files.record_from_json(json.loads(history["record"]), session.folder.path)
        apply_record(compact, record)
        remember(compact, record)
        return finetune(session, compact, compact)
    gated.fix_gates(torch.tensor(history["gates"]))
    finetune(session, gated, gated.host)
    return gated.extract(remove_blocks=recipe.target.remove_blocks)


def finetune(session: Session, model: nn.Module, trained: nn.Module) -> nn.Module:
    """Train on with the structure fixed. ``trained`` is what has the weights: the host, where ``model`` is gated."""
    recipe = session.recipe
    if recipe.finetune_epochs == 0:
        return model
    rated = finetune_optimizer(recipe, trained.parameters())
    loss = task_loss(recipe)
    phase = Phase(
        "finetune",
        model,
        [rated],
        recipe.finetune_epochs,
        lambda outputs, labels: (value := loss(outputs, labels), value),
        clip_norm=recipe.search.clip_norm,
        distillation=session.distillation,
        some_rest=trained is not model,
    )
    run_phase(session, phase)
    return model
