"""Methods by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from depl0._suggest import unknown
from depl0.errors import InputError
from depl0.methods.base import Method

_M = TypeVar("_M", bound=Method)

_registered: dict[str, Method] = {}

METHODS: Mapping[str, Method] = MappingProxyType(_registered)
"""Every registered method by its name."""


def register(name: str) -> Callable[[type[_M]], type[_M]]:
    """Make a method known by a name: ``@register("l1-norm")``."""

    def add(method: type[_M]) -> type[_M]:
        if inspect.isabstract(method):
            missing = ", ".join(sorted(method.__abstractmethods__))
            raise InputError(f"Method {name!r} cannot be registered: {method.__name__} lacks {missing}.")
        known = type(_registered[name]) if name in _registered else method
        if known.__qualname__ != method.__qualname__:  # the same class again is a reloaded module
            raise InputError(
                f"Method {name!r} cannot be {method.__name__}: it is {known.__name__} already.",
                hint="choose another name.",
            )
        _registered[name] = method()
        return method

    return add


def find_method(name: str) -> Method:
    """Return a method by its name.

    >>> find_method("fpgm").scope
    'group'
    """
    if name not in _registered:
        raise unknown("method", name, sorted(_registered), "'dep-l0' is the paper's method.")
    return _registered[name]
