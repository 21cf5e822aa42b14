"""A method that shows the host's signature, to trainers that look which inputs a network takes."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

from torch import nn


def shown_as(method: Any, host: nn.Module) -> Any:
    """Return a bound method whose ``inspect.signature`` has the parameters of the host's ``forward``."""
    original = method.__func__
    function = FunctionType(
        original.__code__, original.__globals__, original.__name__, original.__defaults__, original.__closure__
    )
    function.__doc__ = original.__doc__
    try:
        parameters = list(inspect.signature(host.forward).parameters.values())
    except (TypeError, ValueError):  # a forward written in C tells nothing
        return method
    gated = inspect.Parameter("__gated", inspect.Parameter.POSITIONAL_ONLY)  # what a bound method leaves out
    function.__signature__ = inspect.Signature([gated, *parameters])  # type: ignore[attr-defined]
    return MethodType(function, method.__self__)
