"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from depl0._util.registry import Registry
from depl0.app.methods.base import Method

_M = TypeVar("_M", bound=type[Method])

METHODS: Registry[Method] = Registry("method", advice="'dep-l0' is the paper's method.")
"""Every registered method by its name."""


def register(name: str) -> Callable[[_M], _M]:
    """Make a method known by a name: ``@register("l1-norm")``."""
    return METHODS.register(name, lambda method: method())


def find_method(name: str) -> Method:
    """Return a method by its name.

    >>> find_method("fpgm").scope
    'group'
    """
    return METHODS.find(name)
