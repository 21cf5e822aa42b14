"""What workers do: they find room for the members of a study, and start them.

Members are processes (:func:`depl0.app.studies.member.run_process`) that share nothing but the study's folder, which
all machines must see under the same path. Everything else (queues, machines that are lost, retries) is the workers' own
business.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from depl0._util.registry import Registry
from depl0.errors import InputError

RETRIES = 2
"""how often a member is started again whose process was lost"""

Kind = TypeVar("Kind", bound="type[Workers]")


@final
@dataclass(frozen=True)
class Resources:
    """What one member gets."""

    cpus: int = 1
    gpus: int = 0

    def __post_init__(self) -> None:
        for name, least in (("cpus", 1), ("gpus", 0)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"--{name} must be an integer of at least {least}, got {value} instead.")

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of a member's process."""
        return {"OMP_NUM_THREADS": str(self.cpus), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


class Job(Protocol):
    """A member that workers have taken: what futures of all kinds have."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def result(self) -> dict[str, Any] | None:
        """Return why it failed, if it did; raise what kept the workers from running it."""


class Workers(abc.ABC):
    """Starts members where there is room for them.

    Args:
        argument: what follows the colon of ``--on NAME:ARGUMENT``; empty: nothing.
        resources: what each member gets.
    """

    @abc.abstractmethod
    def __init__(self, argument: str, resources: Resources) -> None: ...

    @abc.abstractmethod
    def submit(self, folder: Path, name: str) -> Job:
        """Take a member of the study in this folder. Returns at once."""

    @abc.abstractmethod
    def close(self, cancel: bool) -> None:
        """Let go of everything. ``cancel``: ask what still runs to stop, and wait until it has saved."""


WORKERS: Registry[type[Workers]] = Registry("workers")


def register(name: str) -> Callable[[Kind], Kind]:
    """Return a decorator that makes workers known by a name."""
    return WORKERS.register(name, lambda kind: kind)


def find_workers(text: str, resources: Resources) -> Workers:
    """Return the workers that ``--on`` names."""
    name, _, argument = text.partition(":")
    return WORKERS.find(name)(argument, resources)
