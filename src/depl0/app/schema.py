"""Validated, frozen data: recipes and data settings are described with these models.

pydantic validates the values and words the errors. They are raised as an InputError of one line, with the name of the
field and its value: "recipe field gates.budget must be less than or equal to 1, got 2 instead."
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import annotated_types as at
from pydantic import AfterValidator, BaseModel, ConfigDict, Strict, ValidationError
from typing_extensions import Self

from depl0._util.registry import did_you_mean, suggest_fraction
from depl0.errors import InputError


def only(allowed: Callable[[Any], bool], words: str) -> AfterValidator:
    """Return the annotation of values for which ``allowed`` is true; ``words`` complete "must be …"."""

    def valid(value: Any) -> Any:
        if not allowed(value):
            raise ValueError(f"must be {words}")
        return value

    return AfterValidator(valid)


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return the annotation of values for which a function does not raise an error."""
    return AfterValidator(lambda value: (check(value), value)[1])


def _is_file_name(text: str) -> bool:
    return text not in (".", "..") and not any(sign in text for sign in "/\\:")


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
Count = Annotated[int, Strict(), at.Ge(0)]
Positive = Annotated[int, Strict(), at.Ge(1)]
Number = Annotated[float, Strict()]
NonNegative = Annotated[float, Strict(), at.Ge(0)]
Above0 = Annotated[float, Strict(), at.Gt(0)]
Share = Annotated[float, Strict(), at.Ge(0), at.Le(1)]
BelowOne = Annotated[float, Strict(), at.Ge(0), at.Lt(1)]
ShareAbove0 = Annotated[float, Strict(), at.Gt(0), at.Le(1)]
Seed = Annotated[int, Strict(), at.Ge(0), at.Le(2**32 - 1)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), only(lambda text: not _CONTROL.search(text), "one line of text")]
Name = Annotated[Text, at.MinLen(1)]
FileName = Annotated[Name, only(_is_file_name, "a name for a folder: one line, no path")]
Distinct = only(lambda values: len(set(values)) == len(values), "a list without duplicates")
Increasing = only(lambda values: all(a < b for a, b in pairwise(values)), "a list in increasing order")


class Schema(BaseModel):
    """Base of validated, frozen data. Invalid values raise InputError when an object is made.

    Use the types above, which never convert text to numbers or numbers to booleans; lists become tuples.

    >>> class Budget(Schema):
    ...     share: ShareAbove0
    >>> Budget(share=0)
    Traceback (most recent call last):
        ...
    depl0.errors.InputError: share must be greater than 0, got 0 instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(type(self), error, values) from None

    @classmethod
    def called(cls, field: str) -> str:
        """Return the name of a field in error messages."""
        return field

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        return type(self)(**{**dict(self), **changes})


def _explained(kind: type[Schema], error: ValidationError, values: dict[str, Any]) -> InputError:
    """Return the error for the first invalid field, in pydantic's words or in those of a check."""
    errors = error.errors(include_url=False)
    first = min(errors, key=lambda each: each["type"] != "extra_forbidden")  # a typing error is also a missing field
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:  # a validator of several fields
        assert isinstance(cause, InputError)
        return cause
    name = str(first["loc"][0])
    called = kind.called(name)
    if isinstance(cause, InputError):
        annotation = kind.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, Schema):
            return cause  # already explained by that model
        words, is_rule = re.subn(r"^The [^']*? must ", "must ", cause.message)
        return InputError(f"{called} {words if is_rule else f'is not valid: {words}'}", hint=cause.hint)
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return InputError(f"{called} is missing.")
    if first["type"] == "extra_forbidden":
        return InputError(f"{called} is unknown.", hint=did_you_mean(name, kind.model_fields))
    said = [re.sub(r"^(Value error, must|\w+ should) ", "", each["msg"]) for each in errors if each["loc"][0] == name]
    words = " or ".join(dict.fromkeys(said)).replace("valid tuple", "list")
    return InputError(f"{called} must {words}, got {shown(values[name])} instead.", hint=_hint(errors, values[name]))


def _hint(errors: Sequence[Any], value: Any) -> str | None:
    contexts = [each.get("ctx", {}) for each in errors]
    is_share = any(1 in (context.get("le"), context.get("lt")) for context in contexts)
    return suggest_fraction(value) if is_share else None


def shown(value: object) -> str:
    """Return a value as shown in errors, at most one line long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
