"""What a recipe describes: data, network, gates and loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from depl0._util.random import seed_everything
from depl0.app.data import Data, open_data
from depl0.app.methods import METHODS, Method, Scored
from depl0.app.models.spec import factory, image_size
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.task import task_of
from depl0.app.runtime.sync_norm import check_norms
from depl0.app.tasks import check_network
from depl0.app.training.initial_weights import Start, start_network
from depl0.config import GateConfig
from depl0.gated import GatedModel, attach
from depl0.select.freeze import check_budget
from depl0.select.sensible import warning_for


def open_data_for(recipe: Recipe, device: torch.device | str, rank: int = 0, world: int = 1) -> Data:
    """Open the data of a recipe."""
    return open_data(recipe.data.spec, recipe.data.settings(recipe.run.seed), device, rank, world)


def model_factory(recipe: Recipe, data: Data) -> Callable[[], nn.Module]:
    """Return the function that builds the dense network of a recipe for its data."""
    channels, height, width = data.info.image_shape
    return factory(recipe.model.spec, data.info.num_outputs, channels, image_size(height, width))


def gated_network(
    recipe: Recipe, engine: Accelerator, data: Data, make_host: Callable[[], nn.Module]
) -> tuple[GatedModel, Tensor, Start]:
    """Build the network of a recipe with its gates, the same in all processes; with one image of the data."""
    start = start_network(recipe, data, make_host)
    host = start.host.to(engine.device)
    if recipe.run.sync_bn:
        check_norms(host)
    example = next(iter(data.test.epoch(0)))[0][:1]  # one image, so that all costs are of one image
    check_network(task_of(recipe), host, example, data.info)
    # Where layers are timed, one process does it and the others read what it has kept.
    with engine.main_process_first() if recipe.target.of == "latency" else nullcontext():
        gated = attach_for(recipe, host, example)
    if engine.num_processes > 1:  # all have the same network by now, and each draws its own gates
        seed_everything(recipe.run.seed + engine.process_index)
    return gated, example, start


def attach_for(recipe: Recipe, host: nn.Module, example: Tensor) -> GatedModel:
    """Put the gates of a recipe on a network, and refuse a budget that cannot be reached."""
    target, method = recipe.target, method_of(recipe)
    rng = torch.Generator().manual_seed(recipe.run.seed)
    gated = attach(host, example, gate_config(recipe), rng=rng)
    method.check(gated)
    if target.budget is not None and isinstance(method, Scored):
        if target.of == "latency":
            gated.time_layers()
        check_budget(gated, target.budget, target.of, gated.config.multiple)
    return gated


def budget_warnings(recipe: Recipe, gated: GatedModel) -> list[str]:
    """Return what has to be said about a budget before hours are spent on it."""
    budget, of = recipe.target.budget, recipe.target.of
    found = None if budget is None else warning_for(gated, budget, of)
    return [] if found is None else [f"warning: {found}"]


def gate_config(recipe: Recipe) -> GateConfig:
    """Return how a recipe puts gates on its network."""
    gates, target = recipe.gates, recipe.target
    # "auto" is decided with the run's state at hand, so that a run that goes on does not measure anew.
    round_to = 1 if target.round_to == "auto" else target.round_to
    shared = GateConfig(groups=gates.groups, round_to=round_to, remove_blocks=target.remove_blocks)
    if isinstance(method_of(recipe), Scored):  # nothing is generated: one number for each gate, which becomes its score
        return shared.changed(generator="independent", of=target.of)
    return shared.changed(
        generator=gates.generator,
        direction=gates.direction,
        conditioning=gates.conditioning,
        alone=gates.alone if target.budget is None else (),
        preset=gates.preset,
        start=gates.start,
        evaluation=gates.evaluation,
        budget=target.budget,
        of=target.of,
    )


def method_of(recipe: Recipe) -> Method:
    """Return the method of a recipe."""
    return METHODS[recipe.gates.method]
