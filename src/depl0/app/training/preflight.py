"""Decisions and messages before the first step: memory layout of weights, and the plan.

Decisions are made once and stored in the run's state, because a resumed run must continue with the same ones.
"""

from __future__ import annotations

import torch
from torch import nn

from depl0.app.data import DataInfo
from depl0.app.methods import Learned
from depl0.app.recipes.recipe import Recipe, method_of
from depl0.app.runtime.execution import set_channels_last, why_not_channels_last
from depl0.app.tasks.classification import Classification
from depl0.app.training.session import Session
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates.generators import PRESETS
from depl0.gates.threshold import COSTS

NEAR_CHANCE = 0.1
"""fraction of the way from chance to 100 %"""
MIN_JUDGING = 30
"""minimum number of test images, because with fewer any accuracy may be due to chance"""


def choose_layout(session: Session, host: nn.Module) -> None:
    """Choose the memory layout of the weights by device and recipe, and convert the host to it.

    Raises:
        InputError: ``run.channels_last`` is on, and the network does not run so.
    """
    state, wanted, shape = session.state, session.recipe.run.channels_last, session.data.info.image_shape
    if state.channels_last is None:
        on_gpu = session.accelerator.device.type == "cuda"
        state.channels_last = shape is not None and (wanted == "on" or (wanted == "auto" and on_gpu))
        if state.channels_last and shape is not None:
            reason = why_not_channels_last(session.accelerator, host, shape)
            state.channels_last = reason is None
            if reason is not None and wanted == "on":
                raise InputError(
                    f"run.channels_last is on, but the network does not run so: {reason}",
                    hint="use run.channels_last = 'off', or .reshape and .flatten instead of .view in the network.",
                )
    if state.channels_last:
        set_channels_last(host)


# -- messages --------------------------------------------------------------------------------------------------------


def header(session: Session, gated: GatedModel) -> str:
    """Return the lines that describe network, data, device, folder and plan of a run."""
    recipe, info, accelerator = session.recipe, session.data.info, session.accelerator
    images = f"{info.train_size:,} training and {info.test_size:,} test images"
    shape = info.shape
    classes = "" if info.num_classes is None else f", {info.num_classes:,} classes"
    processes = "" if accelerator.num_processes == 1 else f", {accelerator.num_processes} processes"
    if accelerator.device.type == "cpu":
        threads = torch.get_num_threads()
        processes = f", {threads} thread{'s' if threads > 1 else ''}{processes}"
    rows = {
        "network": f"{recipe.model.spec}: {gated.dense_cost}",
        "data": f"{recipe.data.spec}: {images} of {shape}{classes}",
        "images": _reading(info),
        "device": f"{accelerator.device}, {recipe.run.precision}{processes}",
        "method": _method(recipe),
        "rates": _rates(recipe),
        "folder": str(session.folder.path),
        "plan": _plan(session),
    }
    return "\n".join(f"{title:<8} {text}" for title, text in rows.items() if text)


def _method(recipe: Recipe) -> str:
    """Return the method of a recipe, with the generator of learned gates."""
    gates = recipe.gates
    if not isinstance(method_of(recipe), Learned):
        return gates.method
    preset = f"{gates.preset}, c = {PRESETS[gates.preset].bound:g}"
    return f"{gates.method} {gates.direction}, generator {gates.generator} ({preset})"


def _rates(recipe: Recipe) -> str:
    """Return the line on learning rates and schedule, if anything is trained."""
    if recipe.search.epochs + recipe.finetune.epochs == 0:
        return ""
    rate = recipe.gate_optimizer.lr if isinstance(method_of(recipe), Learned) else None
    gates = "" if rate is None else f", gates {rate:g}"
    return f"weights {recipe.weight_optimizer.lr:g} ({recipe.weight_optimizer.schedule}){gates}"


def _reading(info: DataInfo) -> str:
    """Return the line on how images are read, resized and normalised, unless user code does that."""
    numbers = {"mean": info.mean, "std": info.std}
    shown = [f"{name} {' '.join(f'{v:.3g}' for v in values)}" for name, values in numbers.items() if values is not None]
    return ", ".join(shown)


def check_above_chance(session: Session, score: float) -> None:
    """Raise if trained weights are not better than chance, because all results would be meaningless.

    Raises:
        InputError: the accuracy is within a tenth of the way from chance to 100 %, and ``model.allow_chance`` is false.
    """
    info, recipe = session.data.info, session.recipe
    counts = None if info.class_counts is None else info.class_counts[1]
    if not isinstance(session.task, Classification) or recipe.model.allow_chance or info.test_size < MIN_JUDGING:
        return
    classes = info.num_classes or 1
    chance = 100 / classes if counts is None or not sum(counts) else 100 * max(counts) / sum(counts)
    if score >= chance + NEAR_CHANCE * (100 - chance):
        return
    names = "" if info.class_names is None else f" The classes, in order: {', '.join(info.class_names[:5])}"
    more = ", …." if classes > 5 else "."
    raise InputError(
        f"the trained weights score {score:.1f} % on {recipe.data.spec}, and guessing scores {chance:.1f} %: are its "
        f"images prepared as those that the network was trained on? Their shape is {info.shape}"
        f" ({_reading(info) or 'as your code gives them'}).{names + more if names else ''}",
        hint="use the preparation of the training: --set 'data.image_size=[48, 80]' (height, width), data.mean and "
        "data.std. To continue anyway: --set model.allow_chance=true.",
    )


def _plan(session: Session) -> str:
    recipe, gates = session.recipe, session.recipe.gates
    parts = [
        _long("search", recipe.search_epochs),
        f"penalty λ = {recipe.penalty.weight:g}"
        if gates.budget is None
        else f"cut to {gates.budget:g} of the {COSTS[gates.of]}",
        _long("fine-tuning", recipe.finetune_epochs),
    ]
    if _trains_dense(session):
        parts.insert(0, _long("dense training", recipe.search.epochs + recipe.finetune.epochs))
    steps = sum(steps_by_phase(session).values())
    number = f"{steps:,} steps of {recipe.data.batch_size}" if steps else "no training"
    return f"{', '.join(filter(None, parts))}: {number}"


def steps_by_phase(session: Session) -> dict[str, int]:
    """Return the phases that train, in their order, with the number of steps of each."""
    recipe = session.recipe
    dense = recipe.search.epochs + recipe.finetune.epochs if _trains_dense(session) else 0
    epochs = {"dense": dense, "search": recipe.search_epochs, "finetune": recipe.finetune_epochs}
    return {phase: number * session.data.train.steps for phase, number in epochs.items() if number}


def _long(what: str, epochs: int) -> str:
    return f"{epochs} epoch{'s' if epochs > 1 else ''} of {what}" if epochs else ""


def _trains_dense(session: Session) -> bool:
    return session.recipe.search.dense_baseline and not session.trained
