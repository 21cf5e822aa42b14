"""Generators by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import torch

from depl0._suggest import unknown
from depl0.errors import InputError
from depl0.generators.base import Generator
from depl0.generators.presets import Preset, find_preset

_G = TypeVar("_G", bound=Generator)

_registered: dict[str, type[Generator]] = {}

GENERATORS: Mapping[str, type[Generator]] = MappingProxyType(_registered)
"""Every registered generator class by its name."""


def register(name: str) -> Callable[[type[_G]], type[_G]]:
    """Make a generator class known by a name: ``@register("fc")``."""

    def add(generator: type[_G]) -> type[_G]:
        if inspect.isabstract(generator):
            missing = ", ".join(sorted(generator.__abstractmethods__))
            raise InputError(f"Generator {name!r} cannot be registered: {generator.__name__} lacks {missing}.")
        known = _registered.get(name, generator)
        if known.__qualname__ != generator.__qualname__:  # the same class again is a reloaded module
            raise InputError(
                f"Generator {name!r} cannot be {generator.__name__}: it is {known.__name__} already.",
                hint="choose another name.",
            )
        _registered[name] = generator
        return generator

    return add


def make_generator(
    name: str,
    sizes: Sequence[int],
    direction: str = "forward",
    preset: str | Preset = "default",
    start: float | None = None,
    rng: torch.Generator | None = None,
    conditioning: str = "log_alpha",
) -> Generator:
    """Make a generator by its name.

    Args:
        name: one of :data:`GENERATORS`.
        sizes: number of gates of each group, in plan order.
        direction: ``"forward"`` or ``"backward"``: the order in which the groups are walked.
        preset: one of :data:`~depl0.generators.presets.PRESETS`, or one of your own.
        start: the first log α of every gate, where the preset has one.
        rng: source of the random initialisation; without it, PyTorch's global one.
        conditioning: what a group is fed on: the ``"log_alpha"`` of the group before it, or its ``"gates"``.

    >>> generator = make_generator("fc", [2, 3], start=4.0)
    >>> generator().detach()
    tensor([4., 4., 4., 4., 4.])
    """
    if name not in _registered:
        advice = "'fc' is the paper's generator; 'independent' is the one without dependency."
        raise unknown("generator", name, sorted(_registered), advice)
    chosen = find_preset(preset)
    if start is not None:
        chosen = chosen.with_start(start)
    return _registered[name](sizes, direction, chosen, rng, conditioning)
