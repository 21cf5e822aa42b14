"""Generators by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch

from depl0._util.registry import Registry
from depl0._util.user_code import load_class, wrap_user_errors
from depl0.gates.generators.base import Generator
from depl0.gates.generators.presets import Preset, find_preset

_G = TypeVar("_G", bound=type[Generator])

GENERATORS: Registry[type[Generator]] = Registry(
    "generator",
    advice="'fc' is the paper's generator; 'independent' is the one without dependency.",
    plugins="depl0.generators",
    own=lambda spec: load_class(spec, "generator", Generator),  # type: ignore[type-abstract]
)
"""Every registered generator class by its name."""


def register(name: str) -> Callable[[_G], _G]:
    """Register a generator class under a name: ``@register("fc")``."""
    return GENERATORS.register(name, lambda generator: generator)


def make_generator(
    name: str,
    sizes: Sequence[int],
    direction: str = "forward",
    preset: str | Preset = "default",
    start: float | None = None,
    rng: torch.Generator | None = None,
    conditioning: str = "log_alpha",
) -> Generator:
    """Create a generator by its name.

    Args:
        name: one of :data:`GENERATORS`, or a class of your own: ``path/to/file.py:Name``.
        sizes: number of gates of each group, in plan order.
        direction: ``"forward"`` or ``"backward"``: the order in which the groups are visited.
        preset: one of :data:`~depl0.gates.generators.presets.PRESETS`, or one of your own.
        start: the initial log α of every gate, if the preset has one.
        rng: random generator of the initialisation. By default PyTorch's global one is used.
        conditioning: the input of each group: the ``"log_alpha"`` of the previous group, or its ``"gates"``.

    >>> generator = make_generator("fc", [2, 3], start=4.0)
    >>> generator().detach()
    tensor([4., 4., 4., 4., 4.])
    """
    generator = GENERATORS.find(name)
    chosen = find_preset(preset)
    if start is not None:
        chosen = chosen.with_start(start)
    with wrap_user_errors("generator", name) if ":" in name else nullcontext():
        return generator(sizes, direction, chosen, rng, conditioning)
