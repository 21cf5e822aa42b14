"""The whole job: search with gates, freeze, extract, fine-tune, evaluate, write down what happened."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

import depl0.files as files
from depl0.cost.count import cost
from depl0.data import Data, DataSettings, open_data
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel, attach
from depl0.methods import METHODS, Method, Scored
from depl0.models.spec import factory
from depl0.recipes.recipe import Recipe
from depl0.surgery.record import CompactRecord, apply_record, record_of, remember
from depl0.training import memory_format
from depl0.training.compaction import Watch, cut, cut_again, note_event
from depl0.training.distill import Distillation
from depl0.training.ema import Average
from depl0.training.engine import make_engine, seed_everything, share_buffers
from depl0.training.evaluate import check_classes, class_scores, evaluate
from depl0.training.freeze import check_budget, freeze, freeze_by
from depl0.training.gate_log import gates_line
from depl0.training.importance import taylor_scores
from depl0.training.latency_budget import latency_frozen, latency_share, measured_share
from depl0.training.loop import Phase, Session, run_phase
from depl0.training.optimizers import finetune_optimizer, search_optimizers, weight_optimizer
from depl0.training.penalised import Penalised
from depl0.training.processes import alone_in, check_same, explained
from depl0.training.progress import Quiet, Reporter
from depl0.training.rollback import roll_back
from depl0.training.run_folder import RunFolder, open_run
from depl0.training.scored import final_scores, scored_phase
from depl0.training.statistics import mean_loss, reestimate, restore, statistics_of
from depl0.training.summary import layer_table, measured
from depl0.training.sync_norm import check_norms
from depl0.training.trouble import diverged
from depl0.weights import load_weights

IMPORTANCE_BATCHES = 32
STATISTICS_BATCHES = 32
_IMPORTANCE_EPOCH, _STATISTICS_EPOCH, _JUDGING_EPOCH = 1_000_000, 1_000_001, 1_000_002
"""epoch numbers that no training reaches: their batches are for importance scores and statistics"""


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
    gated, example = _gated_network(recipe, engine, data, make_host)
    with alone_in(folder.path, engine), explained(engine, folder.path):
        session = Session(recipe, engine, data, folder, reporter if reporter and engine.is_main_process else Quiet())
        if goes_on:
            session.take_up()
        else:
            _begin(session, resume)
        memory_format.choose(session, gated.host, gated.dense_cost.macs)
        if recipe.search.distill > 0:
            session.distillation = Distillation(gated.host, recipe.search.distill, recipe.search.distill_temperature)
        engine.init_trackers("tensorboard" if recipe.run.trackers == ("tensorboard",) else "depl0")
        try:
            while True:
                try:
                    _measure_dense(session, gated.host)
                    compact = _search_and_extract(session, gated, make_host)
                    return folder, _conclude(session, gated, compact, example)
                except DivergedError as trouble:
                    session = roll_back(session, trouble)
                    gated, example = _gated_network(recipe, engine, data, make_host)
        finally:
            engine.end_training()


def _gated_network(
    recipe: Recipe, engine: Accelerator, data: Data, make_host: Callable[[], nn.Module]
) -> tuple[GatedModel, Tensor]:
    """Build the network of a recipe with its gates, the same in all processes; with one image of the data."""
    seed_everything(recipe.run.seed)
    host = make_host()
    if recipe.model.weights:
        load_weights(host, recipe.model.weights)
    host.to(engine.device)
    if recipe.run.sync_bn:
        check_norms(host)
    example = next(iter(data.test.epoch(0)))[0][:1]  # one image, so that all costs are of one image
    check_classes(host, example, data.info.num_classes)
    # Where layers are timed, one process does it and the others read what it has kept.
    with engine.main_process_first() if recipe.target.of == "latency" else nullcontext():
        gated = attach_for(recipe, host, example)
    if engine.num_processes > 1:  # all have the same network by now, and each draws its own gates
        seed_everything(recipe.run.seed, engine.process_index)
    return gated, example


def _begin(session: Session, resume: bool) -> None:
    """Write down what is going to happen, unless another process did so since we looked."""
    folder = session.folder
    if resume:
        session.reporter.note(f"nothing to resume: {folder.path} holds no run yet; starting from the beginning")
    if session.engine.is_main_process:
        open_run(str(folder.path), session.recipe, resume=False)
        folder.begin(session.recipe)


# -- what a recipe describes -----------------------------------------------------------------------------------------


def open_data_for(recipe: Recipe, device: torch.device | str, rank: int = 0, world: int = 1) -> Data:
    """Open the data of a recipe."""
    d = recipe.data
    settings = DataSettings(
        batch_size=d.batch_size,
        eval_batch_size=d.eval_batch_size,
        mean=d.mean,
        std=d.std,
        augment=d.augment,
        crop_padding=d.crop_padding,
        image_size=d.image_size,
        limit_train=d.limit_train,
        workers=d.workers,
        seed=recipe.run.seed,
    )
    return open_data(d.spec, settings, device, rank, world)


def model_factory(recipe: Recipe, data: Data) -> Callable[[], nn.Module]:
    """Return the function that builds the dense network of a recipe for its data."""
    channels, height, _ = data.info.image_shape
    return factory(recipe.model.spec, data.info.num_classes, channels, height)


def attach_for(recipe: Recipe, host: nn.Module, example: Tensor) -> GatedModel:
    """Put the gates of a recipe on a network, and refuse a budget that cannot be reached."""
    gates, target, method = recipe.gates, recipe.target, method_of(recipe)
    rng = torch.Generator().manual_seed(recipe.run.seed)
    if isinstance(method, Scored):  # nothing is generated: one number for each gate, which becomes its score
        gated = attach(host, example, generator="independent", groups=gates.groups, rng=rng)
    else:
        gated = attach(
            host,
            example,
            generator=gates.generator,
            direction=gates.direction,
            conditioning=gates.conditioning,
            groups=gates.groups,
            preset=gates.preset,
            start=gates.start,
            evaluation=gates.evaluation,
            rng=rng,
        )
    method.check(gated)
    if target.budget is not None:
        if target.of == "latency":
            gated.time_layers()
        check_budget(gated, target.budget, target.of, target.round_to)
        if not isinstance(method, Scored):
            gated.set_budget(target.budget, target.of)
    return gated


def method_of(recipe: Recipe) -> Method:
    """Return the method of a recipe."""
    return METHODS[recipe.gates.method]


# -- phases ----------------------------------------------------------------------------------------------------------


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
    loss = _task_loss(session.recipe)
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
        scores = _search(session, gated)
        if "gates" not in history:
            _freeze(session, gated, recipe.search_epochs, scores)
        if not stays_gated:
            compact = gated.extract(remove_blocks=recipe.target.remove_blocks)
            history["record"] = json.dumps(files.record_to_json(_record(compact)))
            return _finetune(session, compact, compact)
        if recipe.run.compact != "never":
            cut(session, gated, torch.tensor(history["gates"]) == 0, "finetune", 0.0)
    elif not stays_gated:
        compact = make_host().to(session.engine.device)
        record = files.record_from_json(json.loads(history["record"]), session.folder.path)
        apply_record(compact, record)
        remember(compact, record)
        return _finetune(session, compact, compact)
    gated.fix_gates(torch.tensor(history["gates"]))
    _finetune(session, gated, gated.host)
    return gated.extract(remove_blocks=recipe.target.remove_blocks)


def _search(session: Session, gated: GatedModel) -> Tensor | None:
    """Train what the method wants trained; return the scores of the gates, where it gives them any."""
    recipe, method = session.recipe, method_of(session.recipe)
    if not isinstance(method, Scored):
        run_phase(session, search_phase(session, gated))
        _release(session, gated)
        return None
    task_loss = _task_loss(recipe)
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    if recipe.search_epochs > 0:
        phase = scored_phase(session, gated, method, task_loss)
        phase.describe = lambda: describe_gates(gated, None)
        run_phase(session, phase)
    return final_scores(session, gated, method, task_loss, _importance_batches(session))


def search_phase(session: Session, gated: GatedModel) -> Phase:
    """The paper's algorithm: weights and gates are trained together, and cost closes gates."""
    recipe, target = session.recipe, session.recipe.target
    optimizers = search_optimizers(recipe, gated.weight_parameters(), gated.generator, session.data.train.steps)
    task_loss = _task_loss(recipe)
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
        _release(session, gated)
        if gated.budget is not None:
            left = 1 - warmup
            gated.budget.advance((fraction - warmup) / left, recipe.search.ramp / left)

    def loss(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        if target.penalty_weight is None:
            task = task_loss(outputs, labels)
            return task, task
        outputs, penalty = outputs
        task = task_loss(outputs, labels)
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
    phase.rebuild = Watch(session, gated, phase, lambda epoch: _freeze(session, gated, epoch)).look
    return phase


def _release(session: Session, gated: GatedModel) -> None:
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
        taylor_scores(gated, _importance_batches(session), _task_loss(recipe), recipe.target.of), reduction="mean"
    )
    if not bool(scores.isfinite().all()):
        raise diverged(f"the importance of the gates is no number at step {session.global_step}.")
    gated.start_from(scores)


def _importance_batches(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the training images by which channels are judged."""
    return islice(session.data.train.epoch(_IMPORTANCE_EPOCH), IMPORTANCE_BATCHES)


def _freeze(session: Session, gated: GatedModel, epoch: float, scores: Tensor | None = None) -> None:
    target, history = session.recipe.target, session.history
    before = evaluate(session.engine, gated, session.data.test.epoch(0))
    rules: Any = {"remove_blocks": target.remove_blocks, "round_to": target.round_to}
    if target.budget is not None and target.of == "latency":
        frozen, history["latency"] = latency_frozen(session.engine, gated, target.budget, scores, **rules)
    elif scores is None or target.budget is None:
        frozen = freeze(gated, target.budget, target.of, **rules)
    else:
        frozen = freeze_by(gated, scores, target.budget, target.of, **rules)
    after = evaluate(session.engine, gated, session.data.test.epoch(0))
    renewed = _renew_statistics(session, gated)
    if renewed:
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
    loss = _task_loss(session.recipe)
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


def _finetune(session: Session, model: nn.Module, trained: nn.Module) -> nn.Module:
    """Train on with the structure fixed. ``trained`` is what has the weights: the host, where ``model`` is gated."""
    recipe = session.recipe
    if recipe.finetune_epochs == 0:
        return model
    rated = finetune_optimizer(recipe, trained.parameters())
    loss = _task_loss(recipe)
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


def _task_loss(recipe: Recipe) -> Callable[[Any, Tensor], Tensor]:
    criterion = nn.CrossEntropyLoss(label_smoothing=recipe.search.label_smoothing)

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        value: Tensor = criterion(class_scores(outputs).float(), labels)
        return value

    return loss


# -- what is written down --------------------------------------------------------------------------------------------


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


def _conclude(session: Session, gated: GatedModel, compact: nn.Module, example: Tensor) -> dict[str, Any]:
    recipe, history, engine = session.recipe, session.history, session.engine
    record = _record(compact)
    check_same(engine, "the structure of the compact network", json.dumps(files.record_to_json(record)["keep"]))
    for network in (compact, gated.host):  # measured as they are when they come from a file
        memory_format.set_contiguous(network)
    accuracy = evaluate(engine, compact, session.data.test.epoch(0))
    compact_cost, dense_cost = cost(compact, example), gated.dense_cost
    dense = model_factory(recipe, session.data)().to(engine.device)
    more = measured(dense, compact, example)
    counted = {"macs": (compact_cost.macs, dense_cost.macs), "params": (compact_cost.params, dense_cost.params)}
    reached = {of: small / large for of, (small, large) in counted.items()}
    target = recipe.target
    if target.of == "latency":
        reached["latency"] = measured_share(compact, dense, gated.example)
    summary: dict[str, Any] = {
        "name": recipe.name,
        "model": recipe.model.spec,
        "data": recipe.data.spec,
        "method": recipe.gates.method,
        "epochs": {"search": recipe.search_epochs, "finetune": recipe.finetune_epochs},
        "dense": {
            "accuracy": history["dense_accuracy"],
            "macs": dense_cost.macs,
            "params": dense_cost.params,
            **more["dense"],
        },
        "compact": {
            "accuracy": accuracy,
            "macs": compact_cost.macs,
            "params": compact_cost.params,
            **more["compact"],
        },
        "budget": target.budget,
        "budget_of": target.of if target.budget is not None else None,
        "budget_asked": target.budget,
        "budget_reached": reached[target.of],
        "round_to": target.round_to,
        "penalty_weight": target.penalty_weight,
        "macs_left": reached["macs"],
        "params_left": reached["params"],
        "latency_budget": history.get("latency"),
        "freezing": history["freezing"],
        "convergence": history.get("convergence"),
        "compactions": history.get("compactions", []),
        "certificate": asdict(record.certificate),
        "removed": [removal.layer for removal in record.removals],
        "input": session.data.info.description(),
        "groups": {g.name: {"gates": g.size, "open": int(sum(v > 0 for v in history["gates"][g.gates]))}
                   for g in gated.plan.groups},
        "layers": layer_table(gated.plan, record, dense_cost, compact_cost),
        "channels_last": history[memory_format.KEY],
        "steps": session.global_step,
        "rollbacks": len(history.get("rollbacks", ())),
        "seconds": session.seconds,
        "seed": recipe.run.seed,
    }  # fmt: skip
    if engine.is_main_process:
        files.save(compact, session.folder.compact)
        session.folder.finish(summary)
    return summary


def _record(compact: nn.Module) -> CompactRecord:
    record = record_of(compact)
    if record is None:
        raise InputError("the network is no compact network.")
    return record
