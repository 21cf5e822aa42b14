"""The fields used from the files of a run, validated by pydantic when a file is read.

Fields may be missing or null unless they are required. Other fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import annotated_types as at
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from depl0.app.runs.records import SCALE
from depl0.app.tasks import metric_in

Count = Annotated[float, at.Ge(0)]
Pair = Annotated[list[float], at.Len(2, 2)]
Network = dict[str, float | None]


class Fields(BaseModel):
    """An object in a file of a run. Subclasses name the fields that are used."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


def optional(**kinds: Any) -> Any:
    """Return a model in which each of these fields may be missing or null."""
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds.items()}
    return create_model("Fields", __base__=Fields, **fields)


def validate(kind: type[BaseModel], value: Any) -> None:
    """Raise a ValueError of one line, with pydantic's message, if a value is not valid.

    >>> validate(optional(seed=float), {"seed": "x"})
    Traceback (most recent call last):
        ...
    ValueError: seed: Input should be a valid number
    """
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error


# -- summary.json ----------------------------------------------------------------------------------------------------


class SpeedupFields(Fields):
    """How much faster the pruned model is."""

    ratio: float
    low: float
    high: float


class _Layer(Fields):
    layer: str
    group: str | None = None
    channels: Count
    kept: Count
    prunable: Count | None = None
    unprunable: dict[str, Count] | None = None
    frozen: dict[str, Count] | None = None
    """the name of ``unprunable`` in summaries of older versions"""
    macs: Pair | None = None
    params: Pair | None = None


class _Fitted(Fields):
    layer: str
    before: float | None = None
    after: float | None = None


class _Group(Fields):
    gates: Count
    open: Count


class _Finished(Fields):
    dense: Network
    compact: Network
    budget_reached: float
    macs_left: float
    params_left: float
    seconds: float


SUMMARY = optional(
    **dict.fromkeys(("name", "model", "data", "method", "budget_of"), str),
    **dict.fromkeys(("seed", "macs_left", "params_left", "budget_reached"), float),
    **dict.fromkeys(("steps", "seconds", "settled_epoch"), Count),
    **dict.fromkeys(("dense", "compact"), Network),
    validation=optional(images=Count, dense=Network, compact=Network),
    convergence=optional(epoch=Count),
    freezing=optional(gates_closed=float, fitted=list[_Fitted]),
    speedup=dict[str, SpeedupFields],
    certificate=optional(max_error=float, dtype=str),
    layers=list[_Layer],
    groups=dict[str, _Group],
)


def check_finished(summary: dict[str, Any]) -> None:
    """Validate the summary of a run that a study counts, with the scores of its own metric."""
    validate(SUMMARY, summary)
    validate(_Finished, summary)
    name, validation = metric_in(summary).name, summary.get("validation")
    networks = {"compact": summary["compact"]}
    if validation is not None:
        networks["validation.compact"] = validation.get("compact") or {}
    for place, network in networks.items():
        if network.get(name) is None:
            raise ValueError(f"{place}.{name}: Field required")


# -- other files -----------------------------------------------------------------------------------------------------


class EpochFields(Fields):
    """A line of ``metrics.jsonl`` about an epoch."""

    model_config = ConfigDict(allow_inf_nan=True)  # losses may be

    phase: str
    epoch: Count
    seconds: Count | None = None
    loss: float | None = None
    task_loss: float | None = None
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    undecided: float | None = None
    threshold: float | None = None


class EventFields(Fields):
    """A line of ``metrics.jsonl`` about a single event."""

    event: str
    phase: str | None = None
    epoch: Count | None = None


ENVIRONMENT = optional(
    python=str,
    commit=str,
    packages=dict[str, str],
    machine=optional(system=str, processor=str, cores=float, threads=float, gpus=list[str]),
)
RECIPE = optional(
    name=str,
    model=optional(spec=str),
    data=optional(spec=str, validation=float),
    gates=optional(method=str, direction=str, generator=str, budget=float, of=str),
    penalty=optional(weight=float),
    search=optional(epochs=Count),
    finetune=optional(epochs=Count),
    run=optional(seed=float, device=str, precision=str),
)
GATES = optional(
    epoch=Count,
    open=dict[str, list[Annotated[int, at.Ge(0), at.Le(SCALE)]]],
    kept=dict[str, list[Annotated[int, at.Ge(0), at.Le(2**32 - 1)]]],
)
