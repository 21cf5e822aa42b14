"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from depl0.errors import InputError


def one_of(what: str, value: str, choices: Sequence[str]) -> str:
    """Return the value if it is one of the choices; refuse it by name otherwise."""
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise InputError(f"{what} must be one of {', '.join(choices)}, got {value!r} instead.", hint=hint)
    return value
