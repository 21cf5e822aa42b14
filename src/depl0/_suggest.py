"""Hints for a name that is none of the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from depl0.errors import InputError


def unknown(what: str, name: object, known: Iterable[str], advice: str | None = None) -> InputError:
    """Return the error for a wrong name. Its hint is the nearest right ones, or else the advice.

    >>> print(unknown("direction", "foward", ["forward", "backward"]))
    The direction must be one of 'forward', 'backward', got 'foward' instead.
    hint: did you mean forward?
    """
    names = list(known)
    return InputError(
        f"The {what} must be one of {', '.join(map(repr, names))}, got {name!r} instead.",
        hint=did_you_mean(name, names) or advice,
    )


def did_you_mean(name: object, known: Iterable[str]) -> str | None:
    """Return the nearest known names as a question, or None when none is near.

    >>> did_you_mean("FC-relo", ["fc", "fc-relu", "fc-tanh"])
    'did you mean fc-relu?'
    """
    return question(nearest(name, known))


def nearest(name: object, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are spelled much like this one, the nearest first; case does not count."""
    spelled = {each.lower(): each for each in known}
    return [spelled[near] for near in difflib.get_close_matches(str(name).lower(), spelled, n=most)]


def question(names: Sequence[str]) -> str | None:
    """Ask whether one of these was meant; None where there are none."""
    return f"did you mean {' or '.join(names)}?" if names else None
