"""What readers rely on in the files of a run: checked when they are read, so that errors name file and field.

A field that is missing or null is fine unless it is required; what is there must be of its type. Other fields are
ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import annotated_types as at
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from depl0.app.runs.gate_log import SCALE
from depl0.app.schema import shown
from depl0.app.tasks import metric_in

LARGEST = 1e18
"""no count, size or time of a run is larger"""
DEEPEST = 20
"""lists in lists: files of a run have four"""


def _encodable(text: str) -> str:
    text.encode()  # lone surrogates cannot be written to a file
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Number = Annotated[float, at.Ge(-LARGEST), at.Le(LARGEST)]
Count = Annotated[float, at.Ge(0), at.Le(LARGEST)]
Pair = Annotated[list[Number], at.Len(2, 2)]

_EXPECTED = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "value_error": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "too_short": "a longer list",
    "too_long": "a shorter list",
}


class Wrong(Exception):
    """A value is not of its type; the message says which, and what was expected."""


def expected(where: str, wanted: str, found: Any) -> Wrong:
    """Return the error for a value that is something else."""
    got = type(found).__name__ if isinstance(found, (dict, list)) else shown(found)
    return Wrong(f"{where or 'it'} must be {wanted}, got {got} instead")


class Fields(BaseModel):
    """An object in a file of a run. Subclasses name the fields that are read."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


def optional(**kinds: Any) -> Any:
    """Return a type of objects in which each of these fields may be missing or null."""
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds.items()}
    return create_model("Optional", __base__=Fields, **fields)


@final
class Check:
    """Checks values against a type, a subclass of :class:`Fields` or a list or dict of such."""

    def __init__(self, kind: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def __call__(self, value: Any, where: str = "") -> None:
        """Raise :class:`Wrong` if a value is not of the type; ``where`` is its name in the file."""
        try:
            self._adapter.validate_python(value)
        except ValidationError as error:
            raise _wrong(error, where) from None


def _wrong(error: ValidationError, where: str) -> Wrong:
    first = error.errors(include_url=False)[0]
    for part in first["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if part != "[key]" else ""
    kind, context, found = first["type"], first.get("ctx", {}), first["input"]
    if kind == "missing":
        return Wrong(f"{where.lstrip('.')} is missing")
    bounds = {"greater_than_equal": f"at least {context.get('ge')}", "less_than_equal": f"at most {context.get('le')}"}
    wanted = f"a number of {bounds[kind]}" if kind in bounds else _EXPECTED.get(kind, "a finite number")
    return expected(where.lstrip("."), wanted, found)


def shallow(value: Any, depth: int = DEEPEST) -> None:
    """Refuse a tree so deep that writing it again would overflow the stack."""
    if isinstance(value, (dict, list)):
        if depth == 0:
            raise expected("", f"nested at most {DEEPEST} deep", value)
        for entry in value.values() if isinstance(value, dict) else value:
            shallow(entry, depth - 1)


# -- summary.json ----------------------------------------------------------------------------------------------------

Network = dict[Text, Number | None]


class SpeedupFields(Fields):
    """How much faster the compact network is."""

    ratio: Number
    low: Number
    high: Number


class _Layer(Fields):
    layer: Text
    group: Text | None = None
    channels: Count
    kept: Count
    prunable: Count | None = None
    unprunable: dict[Text, Count] | None = None
    frozen: dict[Text, Count] | None = None
    """the name of ``unprunable`` in summaries of older versions"""
    macs: Pair | None = None
    params: Pair | None = None


class _Fitted(Fields):
    layer: Text
    before: Number | None = None
    after: Number | None = None


class _Group(Fields):
    gates: Count
    open: Count


class _Finished(Fields):
    dense: Network
    compact: Network
    validation: optional(compact=Network) | None = None  # type: ignore[valid-type]
    budget_reached: Number
    macs_left: Number
    params_left: Number
    seconds: Number


SUMMARY = Check(
    optional(
        **dict.fromkeys(("name", "model", "data", "method", "budget_of"), Text),
        **dict.fromkeys(("seed", "macs_left", "params_left", "budget_reached"), Number),
        **dict.fromkeys(("steps", "seconds", "settled_epoch"), Count),
        **dict.fromkeys(("dense", "compact"), Network),
        validation=optional(images=Count, dense=Network, compact=Network),
        convergence=optional(epoch=Count),
        freezing=optional(gates_closed=Number, fitted=list[_Fitted]),
        speedup=dict[Text, SpeedupFields],
        certificate=optional(max_error=Number, dtype=Text),
        layers=list[_Layer],
        groups=dict[Text, _Group],
    )
)
_FINISHED = Check(_Finished)


def check_finished(summary: dict[str, Any]) -> None:
    """Expect the summary of a run that a study counts, with the score of its own metric."""
    _FINISHED(summary)
    check_score(summary["compact"], metric_in(summary).name, "compact")
    if summary.get("validation") is not None:
        check_score(summary["validation"].get("compact") or {}, metric_in(summary).name, "validation.compact")


def check_score(network: dict[str, Any], metric: str, where: str) -> None:
    """Expect a network's score."""
    Check(Number)(network.get(metric), f"{where}.{metric}")


# -- other files -----------------------------------------------------------------------------------------------------


class _Epoch(Fields):
    model_config = ConfigDict(allow_inf_nan=True)  # losses may be

    phase: Text
    epoch: Count
    seconds: Count | None = None
    loss: float | None = None
    task_loss: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    undecided: float | None = None
    threshold: float | None = None


class _Event(Fields):
    event: Text
    phase: Text | None = None
    epoch: Count | None = None


ENVIRONMENT = Check(
    optional(
        python=Text,
        commit=Text,
        packages=dict[Text, Text],
        machine=optional(system=Text, processor=Text, cores=Number, threads=Number, gpus=list[Text]),
    )
)
RECIPE = Check(
    optional(
        name=Text,
        model=optional(spec=Text),
        data=optional(spec=Text, validation=Number),
        gates=optional(method=Text, direction=Text, generator=Text, budget=Number, of=Text),
        penalty=optional(weight=Number),
        search=optional(epochs=Count),
        finetune=optional(epochs=Count),
        run=optional(seed=Number, device=Text, precision=Text),
    )
)
EPOCH, EVENT = Check(_Epoch), Check(_Event)
GATES = Check(
    optional(
        epoch=Count,
        open=dict[Text, list[Annotated[int, at.Ge(0), at.Le(SCALE)]]],
        kept=dict[Text, list[Annotated[int, at.Ge(0), at.Le(2**32 - 1)]]],
    )
)
