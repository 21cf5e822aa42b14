"""Which of the provable groups the user wants: ``groups="all" | "inner" | names | a function``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from depl0.analysis.plan import Group
from depl0.errors import InputError

GroupChoice: TypeAlias = "str | Iterable[str] | Callable[[Group], bool]"


def select(groups: list[Group], choice: GroupChoice) -> dict[str, str]:
    """Return the names of the groups that are left out, each with the reason."""
    if choice == "all":
        return {}
    if choice == "inner":
        return {g.name: "is added to a shortcut (groups='inner')" for g in groups if g.shared}
    if isinstance(choice, str) or not (callable(choice) or isinstance(choice, Iterable)):
        raise InputError(
            f"groups must be 'all', 'inner', a list of names or a function, got {choice!r} instead.",
            hint="a single name goes into a list: groups=['layer1.0.conv1'].",
        )
    if callable(choice):
        return {g.name: "is left out (groups=function)" for g in groups if not choice(g)}
    return _by_name(groups, list(choice))


def _by_name(groups: list[Group], patterns: list[str]) -> dict[str, str]:
    """Names or shell patterns choose groups; with a leading '-' they leave groups out."""
    if not patterns or not all(isinstance(p, str) and p.strip("-") for p in patterns):
        raise InputError(f"groups must name at least one group, got {patterns!r} instead.")
    names = [g.name for g in groups]
    wanted = [p for p in patterns if not p.startswith("-")]
    unwanted = [p[1:] for p in patterns if p.startswith("-")]
    for pattern in wanted + unwanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
            raise InputError(
                f"groups names {pattern!r}, but no prunable group has that name.",
                hint=f"did you mean {', '.join(near)}?" if near else "depl0.plan(model, inputs) lists the groups.",
            )
    left_out = {}
    for name in names:
        chosen = not wanted or any(fnmatchcase(name, p) for p in wanted)
        if not chosen or any(fnmatchcase(name, p) for p in unwanted):
            left_out[name] = "is left out (groups=names)"
    return left_out
