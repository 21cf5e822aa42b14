"""Options that several commands share: they are the parameters of one function, and are written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

Command = Callable[..., None]


def with_options_of(source: Callable[..., Any], without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command the parameters of ``source``, except some, as further options.

    The command takes them by name, as one dictionary, in its first parameter: ``source(**options)`` uses them.
    """
    shared = {name: parameter for name, parameter in _parameters(source).items() if name not in without}

    def decorate(command: Command) -> Command:
        _, *own = _parameters(command).values()

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = {name: given.pop(name) for name in shared}
            command(options, **given)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared.values(), *own)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters with their annotations evaluated; what is returned may be of a type not imported yet."""
    found = inspect.signature(function).parameters
    return {
        name: parameter.replace(annotation=eval(parameter.annotation, function.__globals__))
        for name, parameter in found.items()
    }
