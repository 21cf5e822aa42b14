"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from depl0._util.registry import did_you_mean
from depl0.errors import InputError


def one_of(what: str, value: str, choices: Sequence[str]) -> str:
    """Return the value if it is one of the choices; refuse it by name otherwise."""
    if value not in choices:
        raise InputError(
            f"{what} must be one of {', '.join(choices)}, got {value!r} instead.", hint=did_you_mean(value, choices)
        )
    return value


def choice(flag: str, choices: Sequence[str], help_: str) -> Any:
    """Return an option that takes one of a few words: its help lists them, and a shell completes them.

    A wrong word is refused while the command line is read, before anything slow is imported.
    """

    def check(value: str | None) -> str | None:
        return value if value is None else one_of(flag, value, choices)

    def complete(incomplete: str) -> list[str]:
        return [word for word in choices if word.startswith(incomplete)]

    return typer.Option(flag, metavar=f"[{'|'.join(choices)}]", help=help_, callback=check, autocompletion=complete)
