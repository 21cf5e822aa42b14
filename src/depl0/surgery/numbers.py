"""Set the numbers of channels that modules keep as attributes, after some of the channels were cut."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def set_numbers(modules: Mapping[str, nn.Module], name: str, values: Mapping[int, int]) -> None:
    """Give an attribute, a whole number or several, smaller values at these places."""
    path, _, attribute = name.rpartition(".")
    before = vars(modules[path])[attribute]
    several = isinstance(before, (list, tuple))
    numbers = list(before) if several else [before]
    for place, value in values.items():
        if type(numbers[place]) is not int or not 0 < value <= numbers[place]:
            raise ValueError(f"{name} is {before!r} and cannot become {value}")
        numbers[place] = value
    setattr(modules[path], attribute, type(before)(numbers) if several else numbers[0])
