"""Build the objects that a recipe describes: data, the dense network with its initial weights, and its gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils import _pytree as pytree

from depl0._util.random import seed_everything
from depl0.app.data import Data, DataInfo, open_data
from depl0.app.methods import Scored
from depl0.app.models.preprocessing import published_preprocessing
from depl0.app.models.spec import factory, image_size
from depl0.app.models.weights import NewHead, fill, has_published, load_weights, published_weights
from depl0.app.recipes.recipe import Recipe, method_of, task_of
from depl0.app.tasks import check_network
from depl0.config import GateConfig
from depl0.costs.count import cost
from depl0.gated import GatedModel, attach
from depl0.select.gates import check_budget


def preprocessing_of(recipe: Recipe) -> dict[str, Any]:
    """Return the preprocessing of image files that the network's library publishes, if it does.

    Fields that the recipe sets are kept. Data sets with a fixed size are unchanged.
    """
    data = recipe.data
    if data.spec.partition(":")[0] != "folder":
        return {}
    fields = published_preprocessing(recipe.model.spec)
    missing = {field: value for field, value in fields.items() if getattr(data, field) is None}
    if data.image_size is not None:
        missing.pop("crop_share", None)  # it belongs to the configured size
    return missing


def with_preprocessing(recipe: Recipe, fields: dict[str, Any]) -> Recipe:
    """Return a recipe with these fields of its data."""
    return recipe.replace(data=recipe.data.replace(**fields)) if fields else recipe


def open_data_for(recipe: Recipe, device: torch.device | str, rank: int = 0, world: int = 1) -> Data:
    """Open the data of a recipe."""
    return open_data(recipe.data.spec, recipe.data.settings(recipe.run.seed), device, rank, world)


def model_factory(recipe: Recipe, data: Data) -> Callable[[], nn.Module]:
    """Return the function that builds the dense network of a recipe for its data."""
    return _factory(recipe.model.spec, data.info)


def _factory(spec: str, info: DataInfo, pretrained: bool = False) -> Callable[[], nn.Module]:
    channels, *sides = info.image_shape or (None,)
    return factory(spec, info.num_outputs, channels, image_size(*sides) if sides else None, pretrained)


# -- initial weights -------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class InitialNetwork:
    """A network before the first step."""

    host: nn.Module
    trained: bool
    """whether it is trained for its task; a network with a new head is not"""
    notes: tuple[str, ...] = ()
    """notes for the user"""


def initial_network(recipe: Recipe, data: Data, make_host: Callable[[], nn.Module]) -> InitialNetwork:
    """Build the network of a recipe with its initial weights: random, from a file, or pretrained."""
    model, info = recipe.model, data.info
    is_users = ":" in model.spec and not has_published(model.spec)
    if is_users and model.pretrained:
        make_host = _factory(model.spec, info, pretrained=True)
    seed_everything(recipe.run.seed)
    host = make_host()
    if model.weights:
        return _loaded(model.weights, host, load_weights(host, model.weights, strict=False))
    if model.pretrained and not is_users:
        source, tensors = published_weights(model.spec, (info.image_shape or (3,))[0])
        return _loaded(source, host, fill(host, tensors, source, strict=False))
    if model.spec.startswith("timm:") and "." in model.spec:  # with the tag of trained weights
        unused = f"warning: {model.spec} starts untrained; --pretrained starts from the weights of that name"
        return InitialNetwork(host, False, (unused,))
    return InitialNetwork(host, model.pretrained)


def _loaded(source: str, host: nn.Module, head: NewHead | None) -> InitialNetwork:
    if head is None:
        return InitialNetwork(host, True)
    layers = ", ".join(head.layers)
    note = f"weights from {source} ({head.before:,} classes); {layers} is initialised for {head.now:,}"
    return InitialNetwork(host, False, (note,))


def first_example(data: Data) -> Any:
    """Return the inputs of one test example, as a batch of one, so that all costs are per example."""
    return pytree.tree_map(lambda tensor: tensor[:1], next(iter(data.test.epoch(0)))[0])


# -- gates -----------------------------------------------------------------------------------------------------------


def gated_network(
    recipe: Recipe,
    accelerator: Accelerator,
    data: Data,
    make_host: Callable[[], nn.Module],
    choose_threads: Callable[[float], None],
) -> tuple[GatedModel, Any, InitialNetwork]:
    """Build the network of a recipe with its gates, identical in all processes; also return one image of the data."""
    start = initial_network(recipe, data, make_host)
    host = start.host.to(accelerator.device)
    example = first_example(data)
    check_network(task_of(recipe), host, example, data.info)
    if accelerator.device.type == "cpu":
        choose_threads(cost(host, example).macs * recipe.data.batch_size / accelerator.num_processes)
    gated = attach_for(recipe, host, example)
    if accelerator.num_processes > 1:  # all ranks have the same network now, and each samples its own gates
        seed_everything(recipe.run.seed + accelerator.process_index)
    return gated, example, start


def attach_for(recipe: Recipe, host: nn.Module, example: Any) -> GatedModel:
    """Attach the gates of a recipe to a network. Raise if the budget cannot be reached."""
    gates, method = recipe.gates, method_of(recipe)
    rng = torch.Generator().manual_seed(recipe.run.seed)
    gated = attach(host, example, gate_config(recipe), rng=rng)
    method.check(gated)
    if gates.budget is not None and isinstance(method, Scored):
        check_budget(gated.snapshot(), gated.config.changed(budget=gates.budget, of=gates.of))
    return gated


def gate_config(recipe: Recipe) -> GateConfig:
    """Return the gate configuration of a recipe."""
    gates = recipe.gates
    settings: dict[str, Any] = {field.name: getattr(gates, field.name) for field in dataclasses.fields(GateConfig)}
    if gates.budget is not None:
        settings["alone"] = ()
    if isinstance(method_of(recipe), Scored):  # no generator: one number for each gate, which becomes its score
        shared = ("groups", "of", "runtime", "round_to", "remove_blocks", "min_share")
        settings = {"generator": "independent", **{name: settings[name] for name in shared}}
    return GateConfig(**settings)
