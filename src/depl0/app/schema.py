"""Validated, frozen data: recipes and data settings are described with these models.

pydantic validates the values and words the errors. They are raised as an InputError of one line, with the name of the
field and its value: "recipe field gates.budget must be less than or equal to 1, got 2 instead."
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import annotated_types as at
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema
from typing_extensions import Self

from depl0._util.registry import Registry, did_you_mean, suggest_fraction, unknown
from depl0.errors import InputError


@dataclass(frozen=True)
class Check:
    """Narrows the values of a type: ``valid`` raises a ValueError for a value that is not allowed."""

    valid: Callable[[Any], object]
    words: str | Callable[[], str]
    """the allowed values, in the list of fields"""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: object) -> object:
            self.valid(value)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"allowed": self.words if isinstance(self.words, str) else self.words()}


def only(allowed: Callable[[Any], bool], words: str) -> Check:
    """Return the annotation of values for which ``allowed`` is true; ``words`` complete "must be …"."""

    def valid(value: object) -> None:
        if not allowed(value):
            raise ValueError(f"must be {words}")

    return Check(valid, words)


def names_from(known: Callable[[], Iterable[str]]) -> Check:
    """Return the annotation of a name in a registry that other packages can add to."""

    def valid(name: str) -> None:
        if name not in known():
            raise unknown("name", name, known())

    return Check(valid, lambda: ", ".join(known()))


def named_in(registry: Registry[Any]) -> Check:
    """Return the annotation of a name in a registry, or of a user-defined class, which is not imported."""
    return Check(registry.check, lambda: f"{', '.join(registry.names())} or path/to/file.py:Name")


def _is_printable(text: str) -> bool:
    # Control characters are never intended, and lone surrogates cannot be written to a file.
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _is_file_name(text: str) -> bool:
    return text not in (".", "..") and not any(sign in text for sign in "/\\:")


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
Text = Annotated[str, Strict(), only(_is_printable, "one line of text")]
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
    if any(1 in (context.get("le"), context.get("lt")) for context in contexts):
        return suggest_fraction(value)
    known = [name for context in contexts for name in re.findall(r"'([^']+)'", str(context.get("expected", "")))]
    return did_you_mean(value, known) if isinstance(value, str) else None


def describe_types(kind: type[Schema]) -> dict[str, str]:
    """Describe the allowed values of every field in a few words.

    >>> class Layer(Schema):
    ...     stride: Positive | tuple[Positive, Positive] | None = None
    >>> describe_types(Layer)
    {'stride': 'integer ≥ 1, or list of 2'}
    """
    return {name: _words(schema) for name, schema in kind.model_json_schema()["properties"].items()}


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", or ".join(_words(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        size = schema.get("minItems") if "prefixItems" in schema else None
        return f"list of {size or _words(schema['items'])}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    kind = {"string": "text", "boolean": "true or false", "object": "table"}.get(schema.get("type", ""))
    return " ".join([schema.get("allowed") or kind or schema.get("type", "value"), " and ".join(bounds)]).strip()


def shown(value: object) -> str:
    """Return a value as shown in errors, at most one line long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
