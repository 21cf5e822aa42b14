"""Build a reference network by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from torch import nn

from depl0.errors import InputError

Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])

_constructors: dict[str, Callable[..., nn.Module]] = {}


def register(constructor: Constructor) -> Constructor:
    """Make a constructor available to `build` under the name of the function; use it as a decorator."""
    name = constructor.__name__
    known = _constructors.get(name, constructor)
    if (known.__module__, known.__qualname__) != (constructor.__module__, constructor.__qualname__):
        raise InputError(
            f"A model called {name!r} is already registered, by {known.__module__}.",
            hint="give the new constructor another name.",
        )
    _constructors[name] = constructor
    return constructor


def names() -> tuple[str, ...]:
    """List the names that `build` knows, in alphabetical order."""
    return tuple(sorted(_constructors))


def constructor_of(name: str) -> Callable[..., nn.Module]:
    """Return the constructor of the network called ``name``."""
    if name not in _constructors:
        nearest = get_close_matches(name, names(), n=3)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"choose one of {', '.join(names())}."
        raise InputError(f"The 'name' parameter of build must be a registered model, got {name!r} instead.", hint=hint)
    return _constructors[name]


def build(name: str, **kwargs: object) -> nn.Module:
    """Build the network called ``name``; keyword arguments go to its constructor.

    >>> build("resnet20", num_classes=100).linear
    Linear(in_features=64, out_features=100, bias=True)
    """
    constructor = constructor_of(name)
    signature = inspect.signature(constructor)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise InputError(
            f"{name} cannot be built with these arguments: {error}.", hint=f"its signature is {name}{signature}."
        ) from error
    return constructor(**kwargs)
