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
from typing import Annotated, Any, TypeVar

import annotated_types as at
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import Self

from depl0._util.registry import Registry, did_you_mean, suggest_fraction
from depl0.errors import InputError

T = TypeVar("T")
MUST = "Input should be "
"""prefix of pydantic's messages"""


@dataclass(frozen=True)
class Check:
    """Narrows the values of a type. ``words`` complete the sentence "must be …".

    ``valid`` raises a ValueError for a value that is not allowed; the hint of an InputError is passed on.
    """

    words: str | Callable[[], str]
    valid: Callable[[Any], object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"title": self.text}

    @property
    def text(self) -> str:
        """Return the words."""
        return self.words if isinstance(self.words, str) else self.words()

    def _checked(self, value: T) -> T:
        try:
            self.valid(value)
        except ValueError as error:
            context = {"words": self.text, "hint": getattr(error, "hint", None)}
            raise PydanticCustomError("check", "Input should be {words}", context) from error
        return value


def names_from(known: Callable[[], Iterable[str]]) -> Check:
    """Return the annotation of a name in a registry that other packages can add to."""

    def check(name: str) -> None:
        if name not in known():
            raise InputError("unknown name", hint=did_you_mean(name, known()))

    return Check(lambda: ", ".join(map(repr, known())), check)


def named_in(registry: Registry[Any]) -> Check:
    """Return the annotation of a name in a registry, or of a user-defined class, which is not imported."""
    return Check(lambda: f"{', '.join(map(repr, registry.names()))} or path/to/file.py:Name", registry.check)


def _printable(text: str) -> None:
    # Control characters are never intended, and lone surrogates cannot be written to a file.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError


def _no_path(text: str) -> None:
    if text in (".", "..") or any(sign in text for sign in "/\\:"):
        raise ValueError


def _distinct(values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError


def _increasing(values: Sequence[Any]) -> None:
    if any(after <= before for before, after in pairwise(values)):
        raise ValueError


Count = Annotated[int, Strict(), at.Ge(0)]
Positive = Annotated[int, Strict(), at.Ge(1)]
Number = Annotated[float, Strict()]
NonNegative = Annotated[float, Strict(), at.Ge(0)]
Above0 = Annotated[float, Strict(), at.Gt(0)]
Share = Annotated[float, Strict(), at.Ge(0), at.Le(1)]
BelowOne = Annotated[float, Strict(), at.Ge(0), at.Lt(1)]
Seed = Annotated[int, Strict(), at.Ge(0), at.Le(2**32 - 1)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), Check("one line of text", _printable)]
Name = Annotated[Text, at.MinLen(1)]
FileName = Annotated[Name, Check("a name for a folder: one line, no path", _no_path)]
Distinct = Check("a list without duplicates", _distinct)
Increasing = Check("a list in increasing order", _increasing)


class Schema(BaseModel):
    """Base of validated, frozen data. Invalid values raise InputError when an object is made.

    Use the types above, which never convert text to numbers or numbers to booleans; lists become tuples.

    >>> class Budget(Schema):
    ...     share: Annotated[float, Strict(), at.Gt(0), at.Le(1)]
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
    """Return the error for the first invalid field, in pydantic's words."""
    errors = error.errors(include_url=False)
    first = errors[0]
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:  # a validator of several fields
        assert isinstance(cause, InputError)
        return cause
    name = str(first["loc"][0])
    if first["type"] == "missing" and len(first["loc"]) == 1:
        return InputError(f"{kind.called(name)} is missing.")
    if first["type"] == "extra_forbidden":
        return InputError(f"{kind.called(name)} is unknown.", hint=did_you_mean(name, kind.model_fields))
    said = dict.fromkeys(each["msg"] for each in errors if each["loc"][0] == name)
    words = " or ".join(text.removeprefix(MUST).replace("valid tuple", "list") for text in said)
    says = "must be" if first["msg"].startswith(MUST) else "is not valid:"
    message = f"{kind.called(name)} {says} {words}, got {shown(values[name])} instead."
    return InputError(message, hint=_hint(errors, kind.model_fields[name], values[name]))


def _hint(errors: Sequence[Any], field: FieldInfo, value: Any) -> str | None:
    contexts = [each.get("ctx", {}) for each in errors]
    given = next((context["hint"] for context in contexts if context.get("hint")), None)
    if given is None and isinstance(value, str):
        known = [name for context in contexts for name in re.findall(r"'([^']+)'", str(context.get("expected", "")))]
        return did_you_mean(value, known)
    if given is None and isinstance(value, (int, float)) and accepts(field, value / 100 if value < 1e6 else value):
        return suggest_fraction(value)
    return given


def accepts(field: FieldInfo, value: object) -> bool:
    """Return True if a field on its own accepts a value."""
    try:
        _adapter(field).validate_python(value)
    except ValidationError:
        return False
    return True


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    constrained: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(constrained, config=ConfigDict(allow_inf_nan=False))


def describe_type(field: FieldInfo) -> str:
    """Describe the allowed values of a field in a few words.

    >>> class Layer(Schema):
    ...     stride: Positive | tuple[Positive, Positive] | None = None
    >>> describe_type(Layer.model_fields["stride"])
    'integer ≥ 1, or list of 2'
    """
    return _words(_adapter(field).json_schema())


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
    return " ".join([schema.get("title") or kind or schema.get("type", "value"), " and ".join(bounds)]).strip()


def shown(value: object) -> str:
    """Return a value as shown in errors, at most one line long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
