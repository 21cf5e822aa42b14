"""Tasks by name, or of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from depl0._util.metric import Metric
from depl0._util.registry import Registry, unknown
from depl0._util.user_code import UserCallable, load_callable, wanted
from depl0.app.tasks.base import Task
from depl0.errors import InputError

_T = TypeVar("_T", bound=Task)

_OWN = "one of your own is my_package.tasks:Name or path/to/file.py:Name."

TASKS: Registry[type[Task]] = Registry("task", _OWN)
"""Every built-in task by its name."""


def register(name: str) -> Callable[[type[_T]], type[_T]]:
    """Make a task known by a name: ``@register("classification")``."""
    return TASKS.register(name, lambda task: task)


def check_spec(spec: str) -> None:
    """Refuse a text that cannot name a task; nothing is imported for it."""
    where, colon, name = spec.rpartition(":")
    if not colon:
        TASKS.find(spec)
    if colon and not (where and name.isidentifier()):
        raise InputError(f"task {spec!r} must have a name on both sides of the colon.", hint=_OWN)


def find_task(spec: str, **settings: object) -> Task:
    """Return the task that a text names, with its settings.

    Args:
        spec: a built-in name, or a :class:`Task` of your own (the class, or a function that returns one):
            ``my_package.tasks:Name`` or ``path/to/file.py:Name``.
        settings: what the class or function takes.

    >>> find_task("segmentation", ignore_index=0)
    Segmentation(ignore_index=0, label_smoothing=0.0)
    """
    return _built(spec, _maker(spec), settings)


def find_task_for(spec: str, settings: Mapping[str, object], label_smoothing: float) -> Task:
    """Return a task as a recipe describes it: label smoothing goes to those that take it, and is refused elsewhere."""
    make = _maker(spec)
    passed = wanted(make.call if isinstance(make, UserCallable) else make, {"label_smoothing": label_smoothing})
    if label_smoothing and not passed:
        raise InputError(
            f"recipe field search.label_smoothing must be 0 where task.spec is {spec!r}, got {label_smoothing:g} "
            "instead.",
            hint="there are no classes that a label could be spread over.",
        )
    if "label_smoothing" in settings and passed:
        raise InputError(
            "recipe field task.settings cannot have label_smoothing.", hint="set search.label_smoothing instead."
        )
    return _built(spec, make, {**passed, **settings})


def _maker(spec: str) -> type[Task] | UserCallable:
    check_spec(spec)
    return TASKS[spec] if spec in TASKS else load_callable(spec, "task")


def _built(spec: str, make: type[Task] | UserCallable, settings: Mapping[str, object]) -> Task:
    if not isinstance(make, UserCallable):
        _check_settings(spec, make, settings)
        return make(**settings)
    if inspect.isabstract(make.call):
        missing = ", ".join(sorted(getattr(make.call, "__abstractmethods__", ())))
        raise InputError(f"task {spec!r} lacks {missing}.", hint="docs/tasks.md has a whole one.")
    make.check_call(settings, "what it takes is set by task.settings in a recipe.")
    task = make(**settings)
    if not isinstance(task, Task):
        raise InputError(
            f"task {spec!r} must be a depl0.app.tasks.Task or return one, got a {type(task).__name__} instead.",
            hint="let the class inherit from depl0.app.tasks.Task.",
        )
    if not isinstance(getattr(task, "metric", None), Metric):
        raise InputError(
            f"task {spec!r} must have a depl0.app.tasks.Metric as its metric.",
            hint='for instance metric = Metric("rmse", higher_is_better=False).',
        )
    return task


def _check_settings(spec: str, kind: type[Task], settings: Mapping[str, object]) -> None:
    """Refuse settings that a built-in task does not have, or of another type than its default."""
    known = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    for name, value in settings.items():
        if name not in known:
            raise (
                unknown(f"setting of {spec}", name, sorted(known), "leave it out.")
                if known
                else InputError(f"task {spec!r} takes no settings, got {name!r}.")
            )
        whole = isinstance(known[name], int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise InputError(
                f"The setting {name!r} of task {spec!r} must be a {'whole ' if whole else ''}number, got {value!r} "
                "instead."
            )
