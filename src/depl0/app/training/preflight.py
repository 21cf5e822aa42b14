"""Messages and checks before the first step."""

from __future__ import annotations

import torch

from depl0.app.data import DataInfo
from depl0.app.methods import Learned
from depl0.app.recipes.recipe import Recipe, method_of
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


def header(session: Session, gated: GatedModel) -> str:
    """Return the lines that describe network, data, device, folder and plan of a run."""
    recipe, info, accelerator = session.recipe, session.data.info, session.accelerator
    classes = "" if info.num_classes is None else f", {info.num_classes:,} classes"
    device = f"{accelerator.device}, {recipe.run.precision}"
    if accelerator.device.type == "cpu":
        threads = torch.get_num_threads()
        device += f", {threads} thread{'s' if threads > 1 else ''}"
    if accelerator.num_processes > 1:
        device += f", {accelerator.num_processes} processes"
    rows = {
        "network": f"{recipe.model.spec}: {gated.dense_cost}",
        "data": f"{recipe.data.spec}: {info.train_size:,} training and {info.test_size:,} test images of {info.shape}"
        f"{classes}{_preparation(info)}",
        "device": device,
        "method": _method(recipe),
        "folder": str(session.folder.path),
        "plan": _plan(session),
    }
    return "\n".join(f"{title:<8} {text}" for title, text in rows.items())


def _method(recipe: Recipe) -> str:
    """Return the method of a recipe, with the generator of learned gates."""
    gates = recipe.gates
    if not isinstance(method_of(recipe), Learned):
        return gates.method
    preset = f"{gates.preset}, c = {PRESETS[gates.preset].bound:g}"
    return f"{gates.method} {gates.direction}, generator {gates.generator} ({preset})"


def _preparation(info: DataInfo) -> str:
    """Return how images are normalised, unless user code does that."""
    known = {"mean": info.mean, "std": info.std}
    return "".join(f", {name} {' '.join(f'{v:.3g}' for v in values)}" for name, values in known.items() if values)


def check_above_chance(session: Session, score: float) -> None:
    """Raise if trained weights are not better than chance, because all results would be meaningless.

    Raises:
        InputError: the accuracy is within a tenth of the way from chance to 100 %, and ``model.allow_chance`` is false.
    """
    info, recipe = session.data.info, session.recipe
    if not isinstance(session.task, Classification) or recipe.model.allow_chance or info.test_size < MIN_JUDGING:
        return
    chance = 100 / (info.num_classes or 1)
    if score >= chance + NEAR_CHANCE * (100 - chance):
        return
    names = f" The classes, in order: {', '.join(info.class_names[:5])} …" if info.class_names else ""
    raise InputError(
        f"the trained weights score {score:.1f} % on {recipe.data.spec}, and guessing scores {chance:.1f} %: are its "
        f"images prepared as those that the network was trained on? Their shape is {info.shape}{_preparation(info)}."
        f"{names}",
        hint="use the preparation of the training: --set 'data.image_size=[48, 80]' (height, width), data.mean and "
        "data.std. To continue anyway: --set model.allow_chance=true.",
    )


def _plan(session: Session) -> str:
    recipe, gates, steps = session.recipe, session.recipe.gates, steps_by_phase(session)
    parts = [f"{number:,} steps of {phase}" for phase, number in steps.items()] or ["no training"]
    if gates.budget is None:
        return f"{', '.join(parts)}; penalty λ = {recipe.penalty.weight:g}"
    return f"{', '.join(parts)}; cut to {gates.budget:g} of the {COSTS[gates.of]}"


def steps_by_phase(session: Session) -> dict[str, int]:
    """Return the phases that train, in their order, with the number of steps of each."""
    recipe = session.recipe
    dense = recipe.search.epochs + recipe.finetune.epochs
    dense *= recipe.search.dense_baseline and not session.trained
    epochs = {"dense": dense, "search": recipe.search_epochs, "finetune": recipe.finetune_epochs}
    return {phase: number * session.data.train.steps for phase, number in epochs.items() if number}
