"""What a recipe describes: data, network, gates and loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from depl0.data import Data, open_data
from depl0.gated import GatedModel, attach
from depl0.methods import METHODS, Method, Scored
from depl0.models.spec import factory
from depl0.pruning.freeze import check_budget
from depl0.recipes.recipe import Recipe
from depl0.runtime.engine import seed_everything
from depl0.runtime.sync_norm import check_norms
from depl0.training.evaluate import check_classes, class_scores
from depl0.weights import load_weights


def open_data_for(recipe: Recipe, device: torch.device | str, rank: int = 0, world: int = 1) -> Data:
    """Open the data of a recipe."""
    return open_data(recipe.data.spec, recipe.data.settings(recipe.run.seed), device, rank, world)


def model_factory(recipe: Recipe, data: Data) -> Callable[[], nn.Module]:
    """Return the function that builds the dense network of a recipe for its data."""
    channels, height, _ = data.info.image_shape
    return factory(recipe.model.spec, data.info.num_classes, channels, height)


def gated_network(
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


def task_loss(recipe: Recipe) -> Callable[[Any, Tensor], Tensor]:
    """Return the loss of a recipe: (outputs, labels) -> mean over the batch."""
    criterion = nn.CrossEntropyLoss(label_smoothing=recipe.search.label_smoothing)

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        value: Tensor = criterion(class_scores(outputs).float(), labels)
        return value

    return loss
