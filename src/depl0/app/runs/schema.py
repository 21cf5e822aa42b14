"""What readers rely on in the files of a run: checked when they are read, so that damage is said by file and field.

A field that is missing or null is fine, as older runs lack some; what is there must be of the right kind. Fields that
are not named here are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from depl0.app.runs.gate_log import SCALE
from depl0.app.tasks import metric_in

LARGEST = 1e18
"""no count, size or time of a run is larger"""
DEEPEST = 20
"""lists in lists: files of a run have four"""

Check = Callable[[Any, str], None]


class Wrong(Exception):
    """A value is not of its kind; the message says which, and what was expected."""

    def __init__(self, where: str, wanted: str, found: Any) -> None:
        shown = repr(found) if isinstance(found, (str, int, float, bool, type(None))) else type(found).__name__
        super().__init__(f"{where or 'it'} must be {wanted}, got {shown[:60]} instead")


def number(value: Any, where: str) -> None:
    """Expect a number that a run can have."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise Wrong(where, "a number", value)


def count(value: Any, where: str) -> None:
    """Expect a number that is not negative."""
    number(value, where)
    if value < 0:
        raise Wrong(where, "a number of at least 0", value)


def any_number(value: Any, where: str) -> None:
    """Expect a number, which may be infinite or none: losses can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (isinstance(value, int) and value > LARGEST):
        raise Wrong(where, "a number", value)


def text(value: Any, where: str) -> None:
    """Expect text that can be written to a file."""
    if not isinstance(value, str) or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise Wrong(where, "text", value)


def fields(checks: Mapping[str, Check], needed: tuple[str, ...] = ()) -> Check:
    """Expect an object whose fields pass their checks, with those that are needed."""

    def check(value: Any, where: str) -> None:
        each(lambda entry, place: None)(value, where)
        for name, inner in checks.items():
            found = value.get(name)
            if found is not None or name in needed:
                inner(found, f"{where}.{name}".lstrip("."))

    return check


def each(inner: Check) -> Check:
    """Expect an object whose keys can be written and whose values all pass a check."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(where, "an object", value)
        for name, entry in value.items():
            text(name, f"a key of {where or 'it'}")
            inner(entry, f"{where}.{name}".lstrip("."))

    return check


def rows(inner: Check, length: int | None = None) -> Check:
    """Expect a list whose entries all pass a check."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise Wrong(where, "a list" if length is None else f"a list of {length}", value)
        for place, entry in enumerate(value):
            inner(entry, f"{where}[{place}]")

    return check


def within(smallest: int, largest: float) -> Check:
    """Expect a list of whole numbers between two: quick, for there may be millions of them."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or any(type(v) is not int or not smallest <= v <= largest for v in value):
            raise Wrong(where, f"a list of whole numbers from {smallest} to {largest:g}", value)

    return check


def shallow(value: Any, depth: int = DEEPEST) -> None:
    """Expect a tree that can be written again without end of the stack."""
    if isinstance(value, (dict, list)):
        if depth == 0:
            raise Wrong("", f"nested at most {DEEPEST} deep", value)
        for entry in value.values() if isinstance(value, dict) else value:
            shallow(entry, depth - 1)


_maybe_number: Check = lambda value, where: None if value is None else number(value, where)  # noqa: E731
_NETWORK = each(_maybe_number)
_PAIR = rows(number, length=2)
_LAYER = fields(
    {
        **{"layer": text, "group": text, "channels": count, "kept": count, "prunable": count},
        **{"frozen": each(count), "macs": _PAIR, "params": _PAIR},
    },
    needed=("layer", "channels", "kept"),
)

_SPEEDUP = ("ratio", "low", "high")
SUMMARY = fields(
    {
        **dict.fromkeys(("name", "model", "data", "method", "budget_of"), text),
        **dict.fromkeys(("seed", "macs_left", "params_left", "budget_reached"), number),
        **dict.fromkeys(("steps", "seconds"), count),
        **dict.fromkeys(("dense", "compact"), _NETWORK),
        "validation": fields({"images": count, "dense": _NETWORK, "compact": _NETWORK}),
        "convergence": fields({"epoch": count}),
        "settled_epoch": count,
        "dependency": fields({"spread_share": number, "gates_that_differ": count, "gates": count}),
        "freezing": fields({"gates_closed": number}),
        "speedup": each(fields(dict.fromkeys(_SPEEDUP, number), needed=_SPEEDUP)),
        "certificate": fields({"max_error": number, "dtype": text}),
        "layers": rows(_LAYER),
        "groups": each(fields({"gates": count, "open": count}, needed=("gates", "open"))),
    }
)
ENVIRONMENT = fields(
    {
        **dict.fromkeys(("python", "commit"), text),
        "packages": each(text),
        "machine": fields({"system": text, "processor": text, "cores": number, "threads": number, "gpus": rows(text)}),
    }
)
RECIPE = fields(
    {
        "name": text,
        "model": fields({"spec": text}),
        "data": fields({"spec": text, "validation": number}),
        "gates": fields({"method": text, "direction": text, "generator": text}),
        "target": fields({"budget": number, "of": text, "penalty_weight": number}),
        "search": fields({"epochs": count}),
        "finetune": fields({"epochs": count}),
        "run": fields({"seed": number, "device": text, "precision": text}),
    }
)
EPOCH = fields(
    {
        **{"phase": text, "epoch": count, "seconds": count},
        **dict.fromkeys(("loss", "task_loss", "train_accuracy", "test_accuracy", "validation_accuracy"), any_number),
        **dict.fromkeys(("undecided", "lambda", "threshold"), any_number),
    },
    needed=("phase", "epoch"),
)


def check_finished(summary: dict[str, Any]) -> None:
    """Expect the summary of a run that a study counts, with the score of its own metric."""
    metric = metric_in(summary).name
    fields(
        {
            "dense": fields({metric: number}),
            "compact": fields({metric: number}, needed=(metric,)),
            "validation": fields({"compact": fields({metric: number}, needed=(metric,))}, needed=("compact",)),
            **dict.fromkeys(("budget_reached", "macs_left", "params_left", "seconds"), number),
        },
        needed=("dense", "compact", "budget_reached", "macs_left", "params_left", "seconds"),
    )(summary, "")


EVENT = fields({"event": text, "phase": text, "epoch": count}, needed=("event",))
GATES = fields({"epoch": count, "open": each(within(0, SCALE)), "kept": each(within(0, 2**32 - 1))})
