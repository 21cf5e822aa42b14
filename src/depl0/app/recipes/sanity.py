"""Settings and data with which a run ends well and its result means nothing: worth a word before hours are spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from depl0.app.data.base import Data
from depl0.app.recipes.recipe import Recipe

LARGEST_PENALTY = 1.0
"""the penalty of one parameter, as a share of a loss that is a few units large"""
LARGEST_GATE_LR = 1.0
LARGEST_LR = 10.0
SHORT_MEMORY = 100
"""steps; a mean over fewer of them is never worth a word"""


def warnings_for(recipe: Recipe, data: Data) -> list[str]:
    """Return why the result of a run would not mean anything, one sentence for each reason; nothing if all is well."""
    return [*_settings(recipe), *_memories(recipe, data.train.steps), *_images(data)]


def _settings(recipe: Recipe) -> Iterator[str]:
    weight, gate_lr = recipe.penalty.weight, recipe.gate_optimizer.lr
    if weight is not None and weight > LARGEST_PENALTY:
        yield (
            f"penalty.weight is {weight:g}: one parameter costs more than any accuracy is worth, so that all "
            "gates close; or none, where Adam's squares of such gradients overflow. The paper's are from 5e-9 to 1e-6."
        )
    if gate_lr is not None and gate_lr > LARGEST_GATE_LR:
        yield (
            f"gate_optimizer.lr is {gate_lr:g}: one step of Adam moves log α by about as much, and a gate is open or "
            "closed beyond ±5, so that single batches decide. Usual are 0.001 to 0.1."
        )
    rates = {"weight_optimizer.lr": recipe.weight_optimizer.lr, "finetune.lr": recipe.finetune.lr}
    for name, rate in rates.items():
        if rate is not None and rate > LARGEST_LR:
            yield f"{name} is {rate:g}: no network learns at such a rate. Usual are 0.001 to 0.5."


def _memories(recipe: Recipe, steps_an_epoch: int) -> Iterator[str]:
    """Find means over more steps than there are: they never get away from where they started."""
    search = recipe.search_epochs * steps_an_epoch
    in_all = search + recipe.finetune_epochs * steps_an_epoch
    decays = {
        "weight_optimizer.momentum": (recipe.weight_optimizer.momentum, in_all),
        "gate_optimizer.betas": (recipe.gate_optimizer.betas[0], search),
        "search.ema_decay": (recipe.search.ema_decay, search),
    }
    for name, (decay, steps) in decays.items():
        if decay is None or steps == 0:
            continue
        memory = 1 / (1 - decay)
        if memory > max(steps, SHORT_MEMORY):
            yield (
                f"{name} is {decay:.8g}: a mean over the last {memory:,.0f} steps, of which this training has "
                f"{steps:,}."
            )


def _images(data: Data) -> Iterator[str]:
    info = data.info
    if info.num_classes == 1:
        yield "the data has one class: every network gets 100 %."
    if info.train_size == 1:
        yield "the data has one training image: there is nothing to learn from it."
    if info.test_size == 1:
        yield "the data has one test image: the accuracy can only be 0 or 100 %."
    if info.class_counts is not None and (info.num_classes or 0) > 1:
        for part, counts in zip(("training", "test"), info.class_counts, strict=True):
            empty = [_name(info.class_names, label) for label, count in enumerate(counts) if count == 0]
            if empty:
                more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
                meaning = "cannot be learned" if part == "training" else "are not part of the accuracy"
                yield (
                    f"{len(empty)} of {len(counts)} classes have no {part} images and {meaning}: "
                    f"{', '.join(empty[:5])}{more}."
                )


def _name(names: Sequence[str] | None, label: int) -> str:
    return str(label) if names is None else names[label]
