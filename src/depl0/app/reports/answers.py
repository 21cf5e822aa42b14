"""Effect of pruning on a network's predictions: the metric by stage and by class, and images that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types as at

from depl0._util import io
from depl0.app.reports.run import Run
from depl0.app.reports.show import change, count, points
from depl0.app.runs import schema as content
from depl0.app.table import Column, Table
from depl0.errors import InputError


class _Class(content.Fields):
    name: str
    images: content.Count
    dense: content.Count | None = None
    compact: content.Count


class _Example(content.Fields):
    number: content.Count
    label: Annotated[int, at.Ge(0)]
    dense: Annotated[int, at.Ge(0)]
    compact: Annotated[int, at.Ge(0)]
    picture: Annotated[str, at.MaxLen(100_000)] | None = None


class _Answers(content.Fields):
    split: str
    images: content.Count
    changed: content.Count | None = None
    classes: list[_Class]
    examples: list[_Example]


@dataclass(frozen=True)
class Example:
    """An image whose prediction changed."""

    picture: str | None
    """a PNG file in base64"""
    number: int
    label: str
    dense: str
    compact: str

    @property
    def verdict(self) -> str:
        """Describe the change of the prediction."""
        if self.compact == self.label:
            return "now right"
        return "now wrong" if self.dense == self.label else "wrong before and after"


def read_answers(run: Run) -> dict[str, Any] | None:
    """Return the content of a run's ``answers.json``, or None if there is no such file."""
    path = run.path / "answers.json"
    if not path.is_file():
        return None
    try:
        found = io.read_json(path)
        content.validate(_Answers, found)
        largest = max([0, *(max(e["label"], e["dense"], e["compact"]) for e in found["examples"])])
        if largest >= len(found["classes"]) and found["examples"]:
            raise ValueError(f"its examples name class {largest}, of {len(found['classes'])}")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.", hint="remove it: the report does without.") from error
    return dict(found)


def examples(found: dict[str, Any]) -> list[Example]:
    """Return the images whose prediction changed, newly wrong ones first."""
    names = [each["name"] for each in found["classes"]]
    made = [
        Example(e.get("picture"), int(e["number"]), names[e["label"]], names[e["dense"]], names[e["compact"]])
        for e in found["examples"]
    ]
    order = ("now wrong", "now right", "wrong before and after")
    return sorted(made, key=lambda example: order.index(example.verdict))


def classes(run: Run, found: dict[str, Any]) -> Table:
    """Return the accuracy of every class, before and after."""
    rows = []
    for each in found["classes"]:
        images, dense, compact = each["images"], each.get("dense"), each["compact"]
        shares = [None if right is None or not images else 100 * right / images for right in (dense, compact)]
        difference = None if shares[0] is None or shares[1] is None else shares[1] - shares[0]
        rows.append(
            {"class": each["name"], "images": images, "dense": shares[0], "compact": shares[1], "change": difference}
        )
    columns = (
        Column("class", "class"),
        Column("images", "images", count, is_number=True),
        Column("dense", "dense", lambda value: f"{value:.1f} %", is_number=True),
        Column("compact", "compact", lambda value: f"{value:.1f} %", is_number=True),
        Column("change", "change, points", points, is_number=True),
    )
    return Table(f"{run.label}: {found['split']} accuracy of every class", columns, rows)


# -- stages ------------------------------------------------------------------------------------------------------------


def stages(run: Run) -> Table:
    """Return the metric before pruning, at the cut, and after each recovery step."""
    metric, dense = run.metric, run.judged_dense
    compact = run.value("compact") if run.split == "test" else run.validation("compact")
    found: list[tuple[str, Any, str]] = [("dense network", dense, "")]
    frozen = run.get("freezing") or {}
    cut = frozen.get(f"{metric.name}_after")
    if _is_number(cut):
        what = {"compensated": "layers behind the cut fitted anew", "renewed": "batch-norm statistics measured anew"}
        found.append(("at the cut", cut, what.get(str(frozen.get("statistics")), "")))
    for event in run.events:
        if event["event"] == "recovery" and _is_number(event.get(metric.name)):
            found.append(("recovered without labels", event[metric.name], _recovery(event)))
    epochs = sum(line.get("phase") == "finetune" for line in run.epochs)
    trained = f"{epochs} epoch{'s' if epochs > 1 else ''} with labels" if epochs else ""
    if trained or len(found) == 1:
        found.append(("fine-tuned" if trained else "compact network", compact, trained))
    rows = [
        {"stage": stage, "value": value, "change": value - dense if place and _is_number(dense) else None, "what": what}
        for place, (stage, value, what) in enumerate(found)
        if _is_number(value)
    ]  # fmt: skip
    columns = (
        Column("stage", ""),
        Column("value", f"{run.split} {metric.label}", metric.show, is_number=True),
        Column("change", "against dense", lambda value: change(metric, value), is_number=True),
        Column("what", "what was done", missing=""),
    )
    return Table(f"{run.label}: before → at the cut → after", columns, rows if len(rows) > 1 else [])


def _recovery(event: dict[str, Any]) -> str:
    before, after, steps = (event.get(key) for key in ("loss_before", "loss_after", "steps"))
    if not all(map(_is_number, (before, after, steps))):
        return ""
    return f"{steps:g} steps; distance from the dense network's answers {before:.3g} → {after:.3g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
