"""New sizes for the configuration of a network whose layers were all pruned in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


def agreed_sizes(
    build: Callable[[Mapping[str, int]], nn.Module], sizes: Mapping[str, int], wanted: Shapes
) -> dict[str, int]:
    """Return the new values of those sizes that all layers of a pruned network agree on.

    Every size is changed once, to find the dimensions that depend on it. If they depend on it alone, the wanted shapes
    determine its new value. Nothing depends on names.

    Args:
        build: builds the network with some sizes changed; it may raise for values that are not allowed.
        sizes: the current sizes.
        wanted: every parameter and buffer of the pruned network.

    Example:
        >>> def build(changed):
        ...     width = changed.get("width", 8)
        ...     return nn.Sequential(nn.Linear(3, 2 * width), nn.Linear(2 * width, changed.get("classes", 4)))
        >>> wanted = {"0.weight": (6, 3), "0.bias": (6,), "1.weight": (4, 6), "1.bias": (4,)}
        >>> agreed_sizes(build, {"width": 8, "classes": 4}, wanted)
        {'width': 3}
    """
    dense = _shapes(build, {})
    if dense is None or dense.keys() != wanted.keys():
        return {}
    changes: dict[str, int] = {}
    for name, size in sizes.items():
        other = _shapes(build, {name: 2 * size})
        if other is None or other.keys() != dense.keys():
            continue
        found = {
            wanted[key][dim] * size // old
            for key, shape in dense.items()
            for dim, old in enumerate(shape)
            if other[key][dim] == 2 * old
        }
        if len(found) == 1 and found != {size}:
            changes[name] = found.pop()
    return changes


def consistent_sizes(
    build: Callable[[Mapping[str, int]], nn.Module], changes: dict[str, int], wanted: Shapes
) -> dict[str, int] | None:
    """Return the changes that produce the wanted shapes: all of them, or all but one that depends on another.

    The result is verified by building the network and comparing all shapes. None: no configuration has these shapes.
    """
    for left_out in (None, *changes):
        tried = {name: size for name, size in changes.items() if name != left_out}
        if tried and _shapes(build, tried) == wanted:
            return tried
    return None


def _shapes(build: Callable[[Mapping[str, int]], nn.Module], changes: Mapping[str, int]) -> Shapes | None:
    try:
        with torch.device("meta"):
            network = build(changes)
    except Exception:  # for instance, heads that do not divide a width
        return None
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def whole_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the integers above 1 of a configuration."""
    return {name: value for name, value in config.items() if type(value) is int and value > 1}
