"""What is said before the first step: network, data, device, folder, what is going to happen, and about how long."""

from __future__ import annotations

import time

import torch
from torch import nn

from depl0._util.random import isolated_random
from depl0.app.runs.progress import duration
from depl0.app.training.session import Session
from depl0.gated import GatedModel
from depl0.gates.threshold import COSTS
from depl0.host.network import evaluation_mode

_IMAGES = 16
"""of the forward pass that is timed"""
_STEP_PER_PASS = 3.0
"""a training step takes about three forward passes"""


def header(session: Session, gated: GatedModel) -> str:
    """Return the lines; one short forward pass is timed for the last of them."""
    recipe, info, engine = session.recipe, session.data.info, session.engine
    images = f"{info.train_size:,} training and {info.test_size:,} test images"
    shape = "×".join(map(str, info.image_shape))
    classes = "" if info.num_classes is None else f", {info.num_classes:,} classes"
    processes = "" if engine.num_processes == 1 else f", {engine.num_processes} processes"
    rows = {
        "network": f"{recipe.model.spec}: {gated.dense_cost}",
        "data": f"{recipe.data.spec}: {images} of {shape}{classes}",
        "device": f"{engine.device}, {recipe.run.precision}{processes}",
        "folder": str(session.folder.path),
        "plan": _plan(session),
    }
    return "\n".join(f"{title:<8} {text}" for title, text in rows.items())


def _plan(session: Session) -> str:
    recipe, steps = session.recipe, session.data.train.steps
    target = recipe.target
    of = COSTS[target.of]
    parts = [
        _long("search", recipe.search_epochs),
        f"penalty λ = {target.penalty_weight:g}" if target.budget is None else f"cut to {target.budget:g} of the {of}",
        _long("fine-tuning", recipe.finetune_epochs),
    ]
    if _trains_dense(session):
        parts.insert(0, _long("dense training", recipe.search.epochs + recipe.finetune.epochs))
    number = f"{_epochs(session) * steps:,} steps of {recipe.data.batch_size}" if _epochs(session) else "no training"
    return f"{', '.join(filter(None, parts))}: {number}"


def time_left(session: Session, host: nn.Module) -> str | None:
    """Say about how long a new training takes, by a short forward pass; None where nothing is trained."""
    epochs = _epochs(session)
    if not epochs or session.resumed is not None:
        return None
    images = next(iter(session.data.test.epoch(0)))[0][:_IMAGES]
    seconds = []
    with evaluation_mode(host), torch.no_grad(), isolated_random(), session.engine.autocast():
        for _ in range(2):  # the first one also finds its algorithms
            start = time.perf_counter()
            host(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    passes = epochs * (_STEP_PER_PASS * session.data.train.size + session.data.test.size)
    return f"time     {duration(seconds[-1] / len(images) * passes)} of training, less as channels are cut out"


def _long(what: str, epochs: int) -> str:
    return f"{epochs} epoch{'s' if epochs > 1 else ''} of {what}" if epochs else ""


def _epochs(session: Session) -> int:
    recipe = session.recipe
    return (
        recipe.search_epochs
        + recipe.finetune_epochs
        + _trains_dense(session) * (recipe.search.epochs + recipe.finetune.epochs)
    )


def _trains_dense(session: Session) -> bool:
    return session.recipe.search.dense_baseline and not session.trained
