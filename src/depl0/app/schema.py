"""Validated, frozen data: recipes, data settings and the files of a run are all described with these models.

pydantic decides what is valid. Its errors are replaced by ours, which say what a field may be, in words made from its
annotation: "recipe field gates.budget must be a number above 0 and at most 1, got 2 instead."
"""

from __future__ import annotations

import types
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types as at
from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, Strict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema
from typing_extensions import Self

from depl0._util.registry import Registry, did_you_mean, suggest_fraction
from depl0.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Means:
    """What an error calls the values of a type, as in "must be …"; ``valid`` narrows them.

    ``valid`` raises a ValueError for a value that is not allowed; the hint of an InputError is passed on.
    """

    words: str | Callable[[], str]
    valid: Callable[[Any], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return schema if self.valid is None else core_schema.no_info_after_validator_function(self._checked, schema)

    def _checked(self, value: T) -> T:
        assert self.valid is not None
        self.valid(value)
        return value


def names_from(known: Callable[[], Iterable[str]]) -> Means:
    """Return the annotation of a name in a registry that other packages can add to."""

    def check(name: str) -> None:
        if name not in known():
            raise InputError("unknown name", hint=did_you_mean(name, known()))

    return Means(lambda: _choices(list(known())), check)


def named_in(registry: Registry[Any]) -> Means:
    """Return the annotation of a name in a registry, or of a class of the user's own; nothing is imported for it."""
    return Means(lambda: f"{_choices(registry.names())}, or path/to/file.py:Name", registry.check)


def _printable(text: str) -> str:
    # Control characters are never intended, and lone surrogates cannot be written to a file.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError
    return text


def _no_path(text: str) -> str:
    if text in (".", "..") or any(sign in text for sign in "/\\:"):
        raise ValueError
    return text


def _distinct(values: Sequence[T]) -> Sequence[T]:
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _increasing(values: Sequence[Any]) -> Sequence[Any]:
    if any(after <= before for before, after in pairwise(values)):
        raise ValueError
    return values


Count = Annotated[int, Strict(), at.Ge(0)]
Positive = Annotated[int, Strict(), at.Ge(1)]
Number = Annotated[float, Strict()]
NonNegative = Annotated[float, Strict(), at.Ge(0)]
Above0 = Annotated[float, Strict(), at.Gt(0)]
Share = Annotated[float, Strict(), at.Ge(0), at.Le(1)]
BelowOne = Annotated[float, Strict(), at.Ge(0), at.Lt(1)]
Seed = Annotated[int, Strict(), at.Ge(0), at.Le(2**32 - 1)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), AfterValidator(_printable), Means("a line of text")]
Name = Annotated[str, Strict(), at.MinLen(1), AfterValidator(_printable), Means("a non-empty line of text")]
FileName = Annotated[Name, AfterValidator(_no_path), Means("a name for a folder: one line, no path")]
Distinct = AfterValidator(_distinct)
Increasing = AfterValidator(_increasing)


class Schema(BaseModel):
    """Base of validated, frozen data. Invalid values raise InputError when an object is made.

    Use the types above, which never convert text to numbers or numbers to booleans; lists become tuples.

    >>> class Budget(Schema):
    ...     share: Annotated[float, Strict(), at.Gt(0), at.Le(1)]
    >>> Budget(share=2)
    Traceback (most recent call last):
        ...
    depl0.errors.InputError: share must be a number above 0 and at most 1, got 2 instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(*explain(type(self), error, values)) from None

    # Models inside of models are then validated by pydantic alone, so that an error knows the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def called(cls, field: str) -> str:
        """Return what errors call a field."""
        return field

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        return type(self)(**{**dict(self), **changes})


def explain(kind: type[Schema], error: ValidationError, values: object) -> tuple[str, str | None]:
    """Return the message and the hint for the first thing that is wrong with the values of a model.

    ``values`` is what was validated. A validator that raises an InputError about several fields speaks for itself.
    """
    first = error.errors(include_url=False)[0]
    name, field, value = _locate(kind, first["loc"], values)
    cause = first.get("ctx", {}).get("error")
    if field is None:
        if isinstance(cause, InputError):
            return cause.message, cause.hint
        return f"{kind.called(name) or 'it'} must be a table, got {shown(value)} instead.", None
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        return f"{kind.called(name)} is missing; it must be {words_for(field)}.", None
    if first["type"] == "extra_forbidden":
        return f"{kind.called(name)} is unknown.", did_you_mean(str(first["loc"][-1]), kind.model_fields)
    return f"{kind.called(name)} must be {words_for(field)}, got {shown(value)} instead.", _hint(error, field, value)


def _hint(error: ValidationError, field: FieldInfo, value: object) -> str | None:
    causes = [each.get("ctx", {}).get("error") for each in error.errors(include_url=False)]
    given = next((cause.hint for cause in causes if isinstance(cause, InputError) and cause.hint), None)
    known = _literals(field.annotation)
    if isinstance(value, float) and accepts(field, value / 100):
        return given or suggest_fraction(value)
    return given or (did_you_mean(value, known) if isinstance(value, str) and value not in known else None)


def _locate(kind: type[BaseModel], path: Sequence[int | str], values: Any) -> tuple[str, FieldInfo | None, Any]:
    """Return the name, description and value of the innermost field on an error's path."""
    name, field, value = "", None, values
    inner: type[BaseModel] | None = kind
    pending, below = "", values
    for part in path:
        if inner is None:
            break  # an entry of a list, or a branch of a union: the field says what is allowed
        below = _entry(below, part)
        if isinstance(part, str) and part in inner.model_fields:
            field = inner.model_fields[part]
            name, value, pending = f"{name}{pending}.{part}".lstrip("."), below, ""
            inner = _model_in(field.annotation)
        elif isinstance(part, str) and field is None:
            return part, FieldInfo(annotation=Any), below  # a field that there is not
        else:
            pending += f"[{part}]"
    return name, field, value


def _entry(values: Any, part: int | str) -> Any:
    try:
        return values[part]
    except (LookupError, TypeError):
        return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [name for each in get_args(annotation) for name in _literals(each)]


def accepts(field: FieldInfo, value: object) -> bool:
    """Tell whether a field alone would take a value."""
    try:
        _adapter(field.annotation, tuple(field.metadata)).validate_python(value)
    except ValidationError:
        return False
    return True


def _adapter(annotation: Any, constraints: tuple[Any, ...]) -> TypeAdapter[Any]:
    constrained: Any = Annotated[(annotation, *constraints)] if constraints else annotation
    return TypeAdapter(constrained, config=ConfigDict(allow_inf_nan=False))


def words_for(field: FieldInfo) -> str:
    """Return what a field may be, as in "must be …".

    >>> class Layer(Schema):
    ...     stride: Positive | tuple[Positive, Positive] | None = None
    >>> words_for(Layer.model_fields["stride"])
    'an integer of at least 1, or a list of 2 in which every entry is an integer of at least 1, or left out'
    """
    return _words(field.annotation, field.metadata)


def _words(annotation: Any, constraints: Sequence[Any] = ()) -> str:
    named = [each for each in constraints if isinstance(each, Means)]
    if named:
        words = named[-1].words
        return words if isinstance(words, str) else words()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], [*arguments[1:], *constraints])
    if origin in (Union, types.UnionType):
        without_none = [_words(each) for each in arguments if each is not type(None)]
        return ", or ".join(without_none + (["left out"] if type(None) in arguments else []))
    if origin is Literal:
        return _choices([str(value) for value in arguments])
    if origin in (tuple, list):
        return _list_words(arguments, constraints)
    if annotation in (int, float):
        return _number_words("an integer" if annotation is int else "a number", constraints)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    return {bool: "true or false", str: "text", dict: "a table"}.get(origin or annotation, "a value of another kind")


def _list_words(entries: tuple[Any, ...], constraints: Sequence[Any]) -> str:
    size = f" of {len(entries)}" if len(entries) > 1 and entries[1] is not Ellipsis else ""
    full = "a non-empty list" if any(isinstance(each, at.MinLen) for each in constraints) else f"a list{size}"
    order = " in increasing order" if Increasing in constraints else ""
    once = ", without duplicates" if Distinct in constraints else ""
    return f"{full}{order} in which every entry is {_words(entries[0])}{once}"


def _number_words(kind: str, constraints: Sequence[Any]) -> str:
    bounds = {}
    for each in constraints:
        for key, word in {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}.items():
            if getattr(each, key, None) is not None:
                bounds[word] = getattr(each, key)
    if kind == "an integer" and list(bounds) == ["of at least", "at most"]:
        return f"{kind} from {bounds['of at least']} to {bounds['at most']}"
    limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items())
    return f"{kind} {limits}" if limits else kind if kind == "an integer" else "a finite number"


def _choices(names: Sequence[str]) -> str:
    return f"one of {', '.join(map(repr, names))}" if len(names) != 1 else repr(names[0])


def shown(value: object) -> str:
    """Return a value as an error shows it, at most a line long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
