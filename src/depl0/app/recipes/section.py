"""A part of a recipe: frozen data whose fields carry the checks of their values."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from depl0.app.checks import shown
from depl0.app.settings import Settings, allow, check_of
from depl0.errors import InputError

__all__ = ["Section", "allow", "check_of", "refusal"]


def refusal(name: str, words: str, value: object, hint: str | None = None) -> InputError:
    """Return the error for a value that a field cannot have."""
    return InputError(f"recipe field {name} must be {words}, got {shown(value)} instead.", hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section(Settings):
    """Base of the parts of a recipe."""

    title: ClassVar[str]

    def _called(self, field_name: str) -> str:
        return f"recipe field {self.title}.{field_name}" if self.title else f"recipe field {field_name}"
