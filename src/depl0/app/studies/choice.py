"""Choose one recipe field for each method of a comparison, on images held out from training.

One run for each value, with the recipe's own seed; the value whose compact network is best on the validation images is
chosen. Test images are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.progress import Reporter
from depl0.app.studies.measures import describe
from depl0.app.studies.measures import value as shown
from depl0.app.studies.study import TRIALS, Outcome, Study, carry_out
from depl0.app.studies.workers import Workers
from depl0.app.table import Table, text_table
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError, TrainingError

HELD_OUT = 0.1
"""fraction of the training images that trials hold out if the recipe holds out none"""


@final
@dataclass(frozen=True)
class Choice:
    """A recipe field, and the values that it may take."""

    field: str
    values: tuple[str, ...]


def read_choice(text: str) -> Choice:
    """Parse the argument of ``--choose``.

    >>> read_choice("finetune.lr=0.01, 0.02")
    Choice(field='finetune.lr', values=('0.01', '0.02'))
    """
    field, equals, values = text.partition("=")
    listed = tuple(word.strip() for word in values.split(","))
    if not equals or not all(listed) or len(listed) < 2 or len(set(listed)) < len(listed):
        raise InputError(
            f"--choose takes a field and at least two different values, got {text!r} instead.",
            hint="for example --choose finetune.lr=0.01,0.02,0.05.",
        )
    return Choice(field.strip(), listed)


@final
class Trials:
    """The runs that a choice is based on: every value for every method."""

    def __init__(self, methods: Mapping[str, Recipe], choice: Choice, metric: Metric) -> None:
        self._methods, self._choice, self._metric = tuple(methods), choice, metric
        self._recipes = {
            self._name(method, number): with_overrides(
                recipe, {"data.validation": recipe.data.validation or HELD_OUT, choice.field: number}
            )
            for method, recipe in methods.items()
            for number in choice.values
        }

    def run(self, folder: Path, reporter: Reporter, workers: Workers | None = None) -> dict[str, Any]:
        """Run the missing trials in a separate folder, and return the chosen value for each method with its reason."""
        study = Study("trials", self._recipes, folder / TRIALS)
        found, _ = carry_out(study, reporter, self._summarise, _tabulate, workers=workers)
        for method, chosen in found["chosen"].items():
            if chosen is None:
                errors = [member["error"] for member in found["members"] if member["method"] == method]
                raise TrainingError(
                    f"nothing can be chosen for {method}: every trial failed, the first one with: {errors[0]}",
                    hint=f"the trials are in {study.folder}; the same command tries them again.",
                )
            reporter.note(f"{method}: {found['field']} = {chosen}, chosen on the validation images")
        return found

    def _name(self, method: str, number: str) -> str:
        return f"{method.replace(':', '-')}/{self._choice.field}-{number}"

    def _summarise(self, outcomes: list[Outcome]) -> dict[str, Any]:
        by_name = {outcome.name: describe(outcome, self._metric) for outcome in outcomes}
        members = [
            {"method": method, "value": number, **by_name[self._name(method, number)]}
            for method in self._methods
            for number in self._choice.values
        ]
        return {
            "field": self._choice.field,
            "values": list(self._choice.values),
            "chosen_by": f"validation_{self._metric.name}",
            "metric": self._metric.to_dict(),
            "chosen": {method: _best(members, method, self._metric) for method in self._methods},
            "members": members,
        }


def _best(members: Sequence[dict[str, Any]], method: str, metric: Metric) -> str | None:
    """Return the value that is best on the validation images, the first one on ties; None if no trial is finished."""
    best: tuple[str, float] | None = None
    for member in members:
        score = member[f"validation_{metric.name}"]
        if member["method"] == method and score is not None and (best is None or metric.better(score, best[1])):
            best = member["value"], score
    return None if best is None else best[0]


def _tabulate(result: dict[str, Any]) -> Table:
    metric = metric_in(result)
    rows = [
        (
            member["method"],
            member["value"],
            shown(metric, member[f"validation_{metric.name}"]),
            "yes" if result["chosen"][member["method"]] == member["value"] else "",
            member["status"],
        )
        for member in result["members"]
    ]
    return text_table(
        f"Trials of {result['field']}",
        ("method", result["field"], f"validation {metric.label}", "chosen", "status"),
        rows,
        ("One run a value; chosen by the validation images alone.",),
        words=("chosen", "status"),
    )


def choice_note(choice: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the line below a comparison's table that lists the chosen values."""
    if choice is None:
        return ()
    chosen = ", ".join(f"{method} {number}" for method, number in choice["chosen"].items())
    values = ", ".join(choice["values"])
    return (f"{choice['field']} was chosen from {values} on validation images, one run each: {chosen}.",)
