"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Sequence

from depl0._suggest import did_you_mean
from depl0.errors import InputError


def one_of(what: str, value: str, choices: Sequence[str]) -> str:
    """Return the value if it is one of the choices; refuse it by name otherwise."""
    if value not in choices:
        raise InputError(
            f"{what} must be one of {', '.join(choices)}, got {value!r} instead.", hint=did_you_mean(value, choices)
        )
    return value
