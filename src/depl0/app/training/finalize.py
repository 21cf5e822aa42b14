"""The end of a run: evaluate and measure the compact network, and write the results."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from torch import Tensor, nn

import depl0.surgery.files as files
from depl0._util.progress import check_stop
from depl0.app.runs.records import layer_table, measured, settled_epoch
from depl0.app.runtime.execution import set_contiguous
from depl0.app.runtime.guard import check, wrong_parameter
from depl0.app.runtime.processes import check_same
from depl0.app.training.evaluate import Scores, compare_predictions, final_scores
from depl0.app.training.session import Session
from depl0.app.training.setup import model_factory
from depl0.costs.count import cost
from depl0.gated import GatedModel
from depl0.select.latency import measured_share
from depl0.surgery.record import CompactRecord, record_of


def finalize(
    session: Session, gated: GatedModel, compact: nn.Module, example: Tensor, trained: nn.Module | None
) -> dict[str, Any]:
    """Evaluate and measure the compact network, save it, and write and return the summary.

    ``trained`` is the original dense network for comparison, or None if it was not trained.
    """
    accelerator = session.accelerator
    record = record_of(compact)
    assert record is not None, "it was extracted"
    check_same(accelerator, "the structure of the compact network", json.dumps(files.record_to_json(record)["keep"]))
    check(accelerator, wrong_parameter(compact, session.global_step), "the compact network")
    dense = trained if trained is not None else model_factory(session.recipe, session.data)().to(accelerator.device)
    for network in (compact, dense):  # measured in the layout that networks loaded from a file have
        set_contiguous(network)
    scores = final_scores(accelerator, compact, session.data, session.task)
    summary = _summary(session, gated, record, scores, (dense, compact), example)
    answers = compare_predictions(session, trained, compact)
    check_stop()
    if accelerator.is_main_process:
        files.save(compact, session.folder.compact)
        if answers is not None:
            session.folder.keep_predictions(answers)
        session.folder.finish(summary)
        session.trackers.log_result(session.folder, summary)
    return summary


def _summary(
    session: Session,
    gated: GatedModel,
    record: CompactRecord,
    scores: Scores,
    networks: tuple[nn.Module, nn.Module],
    example: Tensor,
) -> dict[str, Any]:
    """Return the content of ``summary.json`` about the dense and the compact network."""
    recipe, state, gates, info = session.recipe, session.state, session.recipe.gates, session.data.info
    frozen, metric = state.frozen_gates, session.task.metric
    assert frozen is not None and state.freezing is not None, "the search is over"
    dense, compact = gated.dense_cost, cost(networks[1], example)
    figures, faster = measured(*networks, example)
    left = {"macs": compact.macs / dense.macs, "params": compact.params / dense.params}
    if gates.of == "latency":
        left["latency"] = measured_share(*networks[::-1], gated.example, gated.config.runtime)
    held_out = {"dense": state.dense_validation, "compact": scores.validation}
    return {
        "name": recipe.name,
        "model": session.recipe.model.spec,
        "data": session.recipe.data.spec,
        "method": session.recipe.gates.method,
        "metric": metric.to_dict(),
        "epochs": {"search": recipe.search_epochs, "finetune": recipe.finetune_epochs},
        "dense": {metric.name: state.dense_score, "macs": dense.macs, "params": dense.params, **figures["dense"]},
        "compact": {metric.name: scores.test, "macs": compact.macs, "params": compact.params, **figures["compact"]},
        "validation": None
        if session.data.validation is None
        else {"images": info.validation_size, **{name: {metric.name: score} for name, score in held_out.items()}},
        "speedup": {batch: dataclasses.asdict(found) for batch, found in faster.items()},
        "budget": gates.budget,
        "budget_of": None if gates.budget is None else gates.of,
        "budget_reached": left[gates.of],
        "round_to": gated.config.round_to,
        "penalty_weight": recipe.penalty.weight,
        "macs_left": left["macs"],
        "params_left": left["params"],
        "latency_budget": state.latency,
        "freezing": state.freezing,
        "settled_epoch": settled_epoch(session.folder.gates.read(), frozen, gates.evaluation),
        "compactions": state.compactions,
        "certificate": dataclasses.asdict(record.certificate),
        "agreement": None if record.agreement is None else dataclasses.asdict(record.agreement),
        "removed": list(record.removed),
        "input": info.description(),
        "groups": {
            group.name: {"gates": group.size, "open": sum(value > 0 for value in frozen[group.gates])}
            for group in gated.plan.groups
        },
        "layers": layer_table(gated.plan, record, dense, compact),
        "channels_last": recipe.run.channels_last,
        "steps": session.global_step,
        "seconds": session.seconds,
        "seed": recipe.run.seed,
    }
