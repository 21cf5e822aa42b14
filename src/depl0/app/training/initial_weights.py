"""The network that a run starts from: fresh, from a file, as published, or trained by the user's own function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from depl0._util.random import seed_everything
from depl0.app.data import Data
from depl0.app.models.pretrained import has_published, names_weights, published_weights
from depl0.app.models.spec import factory, image_size
from depl0.app.recipes.recipe import Recipe
from depl0.app.weights import NewHead, fill, load_weights


@final
@dataclass(frozen=True)
class Start:
    """A network before the first step."""

    host: nn.Module
    trained: bool
    """whether it solves its task already; a new head does not"""
    notes: tuple[str, ...] = ()
    """what people should know of it"""


def start_network(recipe: Recipe, data: Data, make_host: Callable[[], nn.Module]) -> Start:
    """Build the network of a recipe with the weights that it starts from; random values follow the run's seed."""
    model, info = recipe.model, data.info
    is_users = ":" in model.spec and not has_published(model.spec)
    if is_users and model.pretrained:
        make_host = factory(
            model.spec, info.num_outputs, info.image_shape[0], image_size(*info.image_shape[1:]), pretrained=True
        )
    loads_itself = is_users and not model.weights and comes_trained(make_host, recipe.run.seed)
    seed_everything(recipe.run.seed)
    host = make_host()
    if model.weights:
        return _from(model.weights, host, load_weights(host, model.weights, strict=model.strict))
    if model.pretrained and not is_users:
        published = published_weights(model.spec, info.image_shape[0])
        return _from(published.source, host, fill(host, published.tensors, published.source, strict=model.strict))
    if loads_itself and not model.pretrained:
        return Start(host, True, (f"{model.spec} gives the same weights for every seed: taken as trained",))
    if names_weights(model.spec):
        unused = f"warning: {model.spec} starts untrained; --pretrained starts from the weights of that name"
        return Start(host, False, (unused,))
    return Start(host, model.pretrained)


def comes_trained(make_host: Callable[[], nn.Module], seed: int) -> bool:
    """Tell whether a function gives weights that no seed changes: it loads them.

    Values that are all alike (the scales of a fresh batch norm) say nothing.
    """
    built = []
    for number in (seed + 1, seed + 2):
        seed_everything(number % 2**32)
        built.append(dict(make_host().named_parameters()))
    first, second = built
    varied = [name for name, value in first.items() if value.numel() > 1 and bool((value != value.flatten()[0]).any())]
    same = sum(first[name].numel() for name in varied if name in second and torch.equal(first[name], second[name]))
    return 2 * same > sum(first[name].numel() for name in varied)


def _from(source: str, host: nn.Module, head: NewHead | None) -> Start:
    if head is None:
        return Start(host, True)
    layers = ", ".join(head.layers)
    was = "no head" if head.before is None else f"{head.before:,} classes"
    return Start(
        host, False, (f"weights from {source} ({was}); {layers} starts anew with {head.now:,} (--strict refuses this)",)
    )
