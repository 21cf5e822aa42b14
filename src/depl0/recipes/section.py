"""A part of a recipe: frozen data whose fields carry the checks of their values."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from depl0.errors import InputError
from depl0.recipes.checks import Check, Refused, shown


def allow(check: Check) -> dict[str, Check]:
    """Give the metadata of a field with this check."""
    return {"check": check}


def check_of(entry: dataclasses.Field[object]) -> Check:
    """Give the check that a field of a section carries."""
    check = entry.metadata["check"]
    assert isinstance(check, Check)
    return check


def refusal(name: str, words: str, value: object, hint: str | None = None) -> InputError:
    """Return the error for a value that a field cannot have."""
    return InputError(f"recipe field {name} must be {words}, got {shown(value)} instead.", hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the parts of a recipe: runs the check of every field, then those of fields that must fit together."""

    title: ClassVar[str]

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            check = check_of(entry)
            value = getattr(self, entry.name)
            try:
                stored = check.read(value)
            except Refused as refused:
                raise refusal(self._name(entry.name), check.words, value, refused.hint) from refused.__cause__
            object.__setattr__(self, entry.name, stored)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that are right alone and wrong together."""

    def _name(self, field_name: str) -> str:
        return f"{self.title}.{field_name}" if self.title else field_name
