"""Build a reference network by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from depl0._util.registry import Registry
from depl0.errors import InputError

Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])

MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
"""All registered constructors by name."""


def register(constructor: Constructor) -> Constructor:
    """Register a constructor for `build` under the name of the function; use it as a decorator."""
    return MODELS.register(constructor.__name__, lambda it: it)(constructor)


def names() -> tuple[str, ...]:
    """Return the names that `build` accepts, in alphabetical order."""
    return MODELS.names()


def build(name: str, **kwargs: object) -> nn.Module:
    """Build the network called ``name``; keyword arguments are passed to its constructor.

    >>> build("resnet20", num_classes=100).linear
    Linear(in_features=64, out_features=100, bias=True)
    """
    constructor = MODELS.find(name)
    signature = inspect.signature(constructor)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise InputError(
            f"{name} cannot be built with these arguments: {error}.", hint=f"its signature is {name}{signature}."
        ) from error
    return constructor(**kwargs)
