"""What readers rely on in the files of a run: checked when they are read, so that errors name file and field.

A field that is missing or null is fine unless it is required; what is there must be of its type. Other fields are
ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, final

import annotated_types as at
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

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
    frozen: dict[Text, Count] | None = None
    macs: Pair | None = None
    params: Pair | None = None


class _Group(Fields):
    gates: Count
    open: Count


class _Validation(Fields):
    images: Count | None = None
    dense: Network | None = None
    compact: Network | None = None


class _Convergence(Fields):
    epoch: Count | None = None


class _Dependency(Fields):
    spread_share: Number | None = None
    gates_that_differ: Count | None = None
    gates: Count | None = None


class _Freezing(Fields):
    gates_closed: Number | None = None


class _Certificate(Fields):
    max_error: Number | None = None
    dtype: Text | None = None


class _Summary(Fields):
    name: Text | None = None
    model: Text | None = None
    data: Text | None = None
    method: Text | None = None
    budget_of: Text | None = None
    seed: Number | None = None
    macs_left: Number | None = None
    params_left: Number | None = None
    budget_reached: Number | None = None
    steps: Count | None = None
    seconds: Count | None = None
    dense: Network | None = None
    compact: Network | None = None
    validation: _Validation | None = None
    convergence: _Convergence | None = None
    settled_epoch: Count | None = None
    dependency: _Dependency | None = None
    freezing: _Freezing | None = None
    speedup: dict[Text, SpeedupFields] | None = None
    certificate: _Certificate | None = None
    layers: list[_Layer] | None = None
    groups: dict[Text, _Group] | None = None


class _Finished(Fields):
    dense: Network
    compact: Network
    validation: _Validation | None = None
    budget_reached: Number
    macs_left: Number
    params_left: Number
    seconds: Number


SUMMARY = Check(_Summary)
_FINISHED = Check(_Finished)


def check_finished(summary: dict[Text, Any]) -> None:
    """Expect the summary of a run that a study counts, with the score of its own metric."""
    _FINISHED(summary)
    check_score(summary["compact"], metric_in(summary).name, "compact")
    if summary.get("validation") is not None:
        check_score(summary["validation"].get("compact") or {}, metric_in(summary).name, "validation.compact")


def check_score(network: dict[Text, Any], metric: str, where: str) -> None:
    """Expect a network's score."""
    Check(Number)(network.get(metric), f"{where}.{metric}")


# -- other files -----------------------------------------------------------------------------------------------------


class _Machine(Fields):
    system: Text | None = None
    processor: Text | None = None
    cores: Number | None = None
    threads: Number | None = None
    gpus: list[Text] | None = None


class _Environment(Fields):
    python: Text | None = None
    commit: Text | None = None
    packages: dict[Text, Text] | None = None
    machine: _Machine | None = None


class _Model(Fields):
    spec: Text | None = None


class _Data(Fields):
    spec: Text | None = None
    validation: Number | None = None


class _Gates(Fields):
    method: Text | None = None
    direction: Text | None = None
    generator: Text | None = None
    budget: Number | None = None
    of: Text | None = None


class _Penalty(Fields):
    weight: Number | None = None


class _Epochs(Fields):
    epochs: Count | None = None


class _Run(Fields):
    seed: Number | None = None
    device: Text | None = None
    precision: Text | None = None


class _Recipe(Fields):
    name: Text | None = None
    model: _Model | None = None
    data: _Data | None = None
    gates: _Gates | None = None
    penalty: _Penalty | None = None
    search: _Epochs | None = None
    finetune: _Epochs | None = None
    run: _Run | None = None


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


class _GateLine(Fields):
    epoch: Count | None = None
    open: dict[Text, list[Annotated[int, at.Ge(0), at.Le(SCALE)]]] | None = None
    kept: dict[Text, list[Annotated[int, at.Ge(0), at.Le(2**32 - 1)]]] | None = None


ENVIRONMENT = Check(_Environment)
RECIPE = Check(_Recipe)
EPOCH = Check(_Epoch)
EVENT = Check(_Event)
GATES = Check(_GateLine)
