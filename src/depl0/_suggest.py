"""Errors for a name that is none of the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from depl0.errors import InputError


def unknown(what: str, name: object, known: Iterable[str], advice: str) -> InputError:
    """Give the error for a wrong name. Its hint is the nearest right ones, or else the advice.

    >>> print(unknown("direction", "foward", ["forward", "backward"], "start with 'forward'."))
    The direction must be one of 'forward', 'backward', got 'foward' instead.
    hint: did you mean 'forward'?
    """
    names = list(known)
    nearest = difflib.get_close_matches(str(name).lower(), names)
    hint = f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else advice
    return InputError(f"The {what} must be one of {', '.join(map(repr, names))}, got {name!r} instead.", hint=hint)
