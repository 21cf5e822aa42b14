"""The end of a run: what the compact network is worth, measured and written down."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

import depl0.files as files
from depl0.costs.count import cost
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.pruning.latency_budget import measured_share
from depl0.runs.summary import layer_table, measured
from depl0.runtime import memory_format
from depl0.runtime.processes import check_same
from depl0.surgery.record import CompactRecord, record_of
from depl0.training.evaluate import evaluate
from depl0.training.loop import Session
from depl0.training.setup import model_factory


def conclude(session: Session, gated: GatedModel, compact: nn.Module, example: Tensor) -> dict[str, Any]:
    """Evaluate and measure the compact network, save it, and return the summary that was written beside it."""
    recipe, history, engine = session.recipe, session.history, session.engine
    record = record_for(compact)
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
        "channels_last": history["channels_last"],
        "steps": session.global_step,
        "rollbacks": len(history.get("rollbacks", ())),
        "seconds": session.seconds,
        "seed": recipe.run.seed,
    }  # fmt: skip
    if engine.is_main_process:
        files.save(compact, session.folder.compact)
        session.folder.finish(summary)
    return summary


def record_for(compact: nn.Module) -> CompactRecord:
    """Return how a network that was extracted became compact."""
    record = record_of(compact)
    if record is None:
        raise InputError("the network is no compact network.")
    return record
