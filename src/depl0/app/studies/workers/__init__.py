"""Workers run members of a study in parallel: processes of this machine, a Ray cluster, Slurm.

Members are processes (:func:`depl0.app.studies.member.run_process`) that share nothing but the study's folder, which
all machines must see under the same path. Everything else (queues, lost machines, retries) is the responsibility of the
workers.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, final

from depl0._util.registry import Registry, import_modules_of

RETRIES = 2
"""number of restarts of a member whose process was lost"""

Kind = TypeVar("Kind", bound="type[Workers]")


@final
@dataclass(frozen=True)
class Resources:
    """Resources of one member."""

    cpus: int = 1
    gpus: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of a member's process."""
        return {"OMP_NUM_THREADS": str(self.cpus), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


class Job(Protocol):
    """A submitted member, with the common interface of all kinds of futures."""

    def done(self) -> bool:
        """Return True if it has ended."""

    def result(self) -> str | None:
        """Return its error, if it failed; raise the error that prevented the workers from running it."""


class Workers(abc.ABC):
    """Starts members as soon as resources are free.

    Args:
        argument: the text after the colon of ``--on NAME:ARGUMENT``; may be empty.
        resources: the resources of each member.
    """

    @abc.abstractmethod
    def __init__(self, argument: str, resources: Resources) -> None: ...

    @abc.abstractmethod
    def submit(self, folder: Path, name: str) -> Job:
        """Submit a member of the study in this folder without waiting for it."""

    @abc.abstractmethod
    def close(self, cancel: bool) -> None:
        """Release all resources. With ``cancel``, request running members to stop, and wait until they have saved."""


WORKERS: Registry[type[Workers]] = Registry("workers")


def register(name: str) -> Callable[[Kind], Kind]:
    """Return a decorator that registers workers by name."""
    return WORKERS.register(name, lambda kind: kind)


def find_workers(text: str, resources: Resources) -> Workers:
    """Return the workers that ``--on`` names."""
    name, _, argument = text.partition(":")
    return WORKERS.find(name)(argument, resources)


import_modules_of(__name__)  # the kinds of workers register themselves
