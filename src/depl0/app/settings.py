"""Frozen settings whose fields carry the checks of their values."""

from __future__ import annotations

import abc
import dataclasses

from depl0.app.checks import Check, Refused, shown
from depl0.errors import InputError


def allow(check: Check) -> dict[str, Check]:
    """Give the metadata of a field with this check."""
    return {"check": check}


def check_of(entry: dataclasses.Field[object]) -> Check:
    """Give the check that a field carries."""
    check = entry.metadata["check"]
    assert isinstance(check, Check)
    return check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(abc.ABC):
    """Runs the check of every field, then those of fields that must fit together."""

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            check = check_of(entry)
            value = getattr(self, entry.name)
            try:
                stored = check.read(value)
            except Refused as refused:
                raise InputError(
                    f"{self._called(entry.name)} must be {check.words}, got {shown(value)} instead.", refused.hint
                ) from refused.__cause__
            object.__setattr__(self, entry.name, stored)
        self._check_together()

    @abc.abstractmethod
    def _called(self, field_name: str) -> str:
        """Return what an error calls a field."""

    def _check_together(self) -> None:  # noqa: B027  (most settings have nothing of the kind)
        """Refuse values that are right alone and wrong together."""
