"""A comparison: several methods, budgets and seeds, everything else the same."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from depl0._util.user_code import shown_spec
from depl0.app.data import shown_data
from depl0.app.methods import METHODS
from depl0.app.recipes.recipe import Recipe, folder_name, for_method, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.choice import choice_note
from depl0.app.studies.measures import (
    AGREEMENTS,
    are_held_out,
    cells_of,
    change,
    describe,
    direction_note,
    made_with,
    made_with_note,
    milliseconds,
    number_of,
    over_seeds,
    score_titles,
    seconds,
    seeds_from,
    share,
    shown_agreement,
    unfinished_note,
    value,
)
from depl0.app.studies.study import Outcome, Result
from depl0.app.table import Table, text_table
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS
from depl0.gates.threshold import COSTS

DIRECTIONS = ("forward", "backward")
SAME_COST = 0.005
"""costs that differ by at most this fraction of the dense cost count as equal on the frontier"""
_T_QUANTILES = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
"""97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; the last is used for more"""


def read_methods(text: str) -> tuple[str, ...]:
    """Parse methods separated by commas.

    >>> read_methods("dep-l0, dep-l0:backward, l0-hc")
    ('dep-l0', 'dep-l0:backward', 'l0-hc')
    """
    methods = tuple(word.strip() for word in text.split(","))
    if not all(methods):
        raise InputError(
            f"--methods takes names separated by commas, got an empty place in {text!r} instead.",
            hint="for example --methods dep-l0,dep-l0:backward,l0-hc.",
        )
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise InputError(f"--methods has {', '.join(twice)} more than once.", hint="name each method once.")
    return methods


def parts_of(method: str) -> list[str]:
    """Return a method and its variants, each of which may be defined in a user's file.

    >>> parts_of("dep-l0:conv1d:backward"), parts_of("dep-l0:mine.py:Gen"), parts_of("path/mine.py:Mine")
    (['dep-l0', 'conv1d', 'backward'], ['dep-l0', 'mine.py:Gen'], ['path/mine.py:Mine'])
    """
    parts, words = [], iter(method.split(":"))
    for word in words:
        known = word in METHODS or word in GENERATORS or word in DIRECTIONS
        name = None if known else next(words, None)
        parts.append(word if name is None else f"{word}:{name}")
    return parts


def gates_of(recipe: Recipe, method: str) -> dict[str, object]:
    """Return the recipe fields of a method, or of a variant: ``dep-l0:backward``, ``dep-l0:conv1d:backward``."""
    name, *variants = parts_of(method)
    fields = for_method(recipe, name)
    fields.pop("name", None)  # a member's name is that of its folder
    for variant in variants:
        if name == "dep-l0" and variant in DIRECTIONS:
            fields["gates.direction"] = variant
        elif name == "dep-l0" and (variant in GENERATORS or ":" in variant):
            fields["gates.generator"] = variant
        else:
            raise InputError(
                f"{method!r} is not a variant of a method: {variant!r} is neither a generator nor a direction.",
                hint=f"dep-l0 comes with {', '.join((*sorted(GENERATORS), *DIRECTIONS))}; others have no variants.",
            )
    return fields


@final
class Comparison:
    """Several methods, budgets and seeds with everything else the same: the members, and their table.

    Args:
        recipe: settings shared by all runs.
        methods: names or variants, as :func:`gates_of` reads them; none: the recipe's own method alone.
        seeds: number of runs for each method and budget, from the recipe's seed on.
        budgets: fractions of the cost to keep; none: the recipe's own budget.
        choice: the choice of :class:`~depl0.app.studies.choice.Trials` for each method.
        by_budget: name members by their budgets alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        methods: Sequence[str],
        seeds: int,
        budgets: Sequence[float] = (),
        choice: Mapping[str, Any] | None = None,
        *,
        by_budget: bool = False,
    ) -> None:
        if budgets:  # values are chosen at the middle budget
            recipe = with_overrides(recipe, {"gates.budget": sorted(budgets)[len(budgets) // 2]})
        if recipe.gates.budget is None:
            raise InputError(
                f"a comparison needs a budget, so that all methods may cost the same; recipe {recipe.name} has the "
                f"fixed λ {recipe.penalty.weight:g} instead.",
                hint="for example --budget 0.5.",
            )
        self.recipe, self._choice, self._by_budget = recipe, choice, by_budget
        self.metric = task_of(recipe).metric
        self.methods = tuple(methods) or (recipe.gates.method,)
        folders = ["-".join(map(folder_name, parts_of(method))) for method in self.methods]
        for method, name in zip(self.methods, folders, strict=True):
            if folders.count(name) > 1:
                raise InputError(
                    f"two methods would share the folder {name}: {method!r} is one.", hint="rename a class."
                )
        self.seeds = seeds_from(recipe.run.seed, seeds)
        self.budgets = tuple(sorted(budgets, reverse=True)) or (recipe.gates.budget,)

    def members(self) -> dict[str, Recipe]:
        """Return the members, seed by seed, so that after an early end all methods have a similar number of runs."""
        return {
            self._name(method, budget, seed): with_overrides(
                recipe, {"run.seed": seed, "gates.budget": budget, **self._chosen(method)}
            )
            for seed in self.seeds
            for budget in self.budgets
            for method, recipe in self.recipes().items()
        }

    def _name(self, method: str, budget: float, seed: int) -> str:
        if self._by_budget:
            return f"budget-{budget:g}"
        several = [f"budget-{budget:g}"] if len(self.budgets) > 1 else []
        return "/".join(("-".join(map(folder_name, parts_of(method))), *several, f"seed-{seed}"))

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipe of each method."""
        return {method: with_overrides(self.recipe, gates_of(self.recipe, method)) for method in self.methods}

    def chosen(self, choice: Mapping[str, Any]) -> Comparison:
        """Return the comparison with the choice of :class:`~depl0.app.studies.choice.Trials` for each method."""
        return Comparison(self.recipe, self.methods, len(self.seeds), self.budgets, choice)

    def _chosen(self, method: str) -> dict[str, object]:
        """Return the fields chosen for a method; with these, all training images are used for training."""
        choice = self._choice
        return {} if choice is None else {choice["field"]: choice["chosen"][method], "data.validation": 0.0}

    def summarise(self, outcomes: list[Outcome], folder: Path) -> Result:
        """Return the content of ``comparison.json``."""
        described = {outcome.name: describe(outcome, self.metric) for outcome in outcomes}
        rows = [
            {
                "method": _shown(method),
                "budget": budget,
                **over_seeds(members, self.metric),
                "by_seed": {
                    str(seed): member[self.metric.name] for seed, member in zip(self.seeds, members, strict=True)
                },
            }
            for budget in self.budgets
            for method in self.methods
            for members in [[described[self._name(method, budget, seed)] for seed in self.seeds]]
        ]
        for row in rows:
            row["on_frontier"] = _is_on_frontier(row, rows, self.metric)
        times = [member["dense_latency_ms"] for member in described.values() if member["dense_latency_ms"] is not None]
        dense, gates = f"dense_{self.metric.name}", self.recipe.gates
        return {
            "study": "comparison",
            "recipe": self.recipe.name,
            "model": shown_spec(self.recipe.model.spec),
            "data": shown_data(self.recipe.data.spec),
            "metric": self.metric.to_dict(),
            "budget": gates.budget,
            "of": gates.of,
            "epochs": self.recipe.search.epochs,
            "finetune_epochs": self.recipe.finetune.epochs,
            "seeds": list(self.seeds),
            "choice": self._choice,
            dense: next((member[dense] for member in described.values() if member[dense] is not None), None),
            "dense_latency_ms": statistics.fmean(times) if times else None,
            "methods": rows,
            "members": list(described.values()),
            "made_with": made_with(folder / name for name in described),
        }


def _shown(method: str) -> str:
    """Return a method's name without local folders."""
    return ":".join(map(shown_spec, parts_of(method)))


def _is_on_frontier(row: dict[str, Any], rows: list[dict[str, Any]], metric: Metric) -> bool:
    """Return True unless another row is better in metric or cost and not worse in the other, beyond their spread."""
    if row[metric.name]["mean"] is None:
        return False
    sign = 1 if metric.higher_is_better else -1
    for other in rows:
        if other is row or other[metric.name]["mean"] is None:
            continue
        gain = sign * _beyond_spread(other, row, metric.name, 0.0)
        saving = -_beyond_spread(other, row, "cost_left", SAME_COST)
        if min(gain, saving) >= 0 and max(gain, saving) > 0:
            return False
    return True


def _beyond_spread(a: dict[str, Any], b: dict[str, Any], name: str, floor: float) -> float:
    """Return the difference of two means, or 0 if it is within the spread over seeds (or within ``floor``)."""
    difference: float = a[name]["mean"] - b[name]["mean"]
    spread = math.hypot(a[name]["sd"] or 0.0, b[name]["sd"] or 0.0)
    return difference if abs(difference) > max(spread, floor) else 0.0


def paired_differences(result: Result) -> Table:
    """Return the difference of every two methods at each budget, seed by seed, with its 95 % interval."""
    metric = metric_in(result)
    scores: dict[tuple[str, float], dict[int, float]] = {}
    for row in result["methods"]:
        scores[row["method"], row["budget"]] = {
            int(seed): score for seed, score in row.get("by_seed", {}).items() if score is not None
        }
    rows = []
    for (first, budget), (second, other) in itertools.combinations(scores, 2):
        if budget != other:
            continue
        ours, theirs = scores[first, budget], scores[second, budget]
        differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        if differences:
            mean, half = statistics.fmean(differences), half_interval(differences)
            interval = (
                ""
                if half is None
                else f"{metric.number(mean - half, sign=True)} to " + metric.number(mean + half, sign=True)
            )
            rows.append(
                (
                    f"{first} less {second}",
                    f"{budget:g}",
                    str(len(differences)),
                    metric.number(mean, sign=True),
                    interval,
                )
            )
    titles = ("methods", "budget", "n", f"{metric.label}, mean difference", "95 % interval")
    return text_table(f"{result['recipe']}: differences between methods, seed by seed", titles, rows)


def half_interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean (Student's t); None for fewer than two values.

    >>> round(half_interval([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return None
    quantile = _T_QUANTILES[min(len(values) - 1, len(_T_QUANTILES)) - 1]
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def tabulate(result: Result) -> Table:
    """Return the table of a comparison; with several budgets it marks the rows on the frontier."""
    metric = metric_in(result)
    held_out, several = are_held_out(result["members"], metric), len({row["budget"] for row in result["methods"]}) > 1
    agreement = shown_agreement(result["members"])
    extra = [""] if agreement is not None else []
    rows: list[tuple[str, ...]] = []
    if several:
        score = value(metric, result[f"dense_{metric.name}"])
        held, time = [""] if held_out else [], [milliseconds(result["dense_latency_ms"])] if extra else []
        rows.append(("dense", "", "", *held, score, "", *extra, share(1.0), share(1.0), *time, "", ""))
    for row in result["methods"]:
        cells = cells_of(row, metric)
        rows.append(
            (
                row["method"],
                *([f"{row['budget']:g}"] if several else []),
                number_of(row),
                *([value(metric, *cells[f"validation_{metric.name}"])] if held_out else []),
                value(metric, *cells[metric.name]),
                change(metric, *cells["change"]),
                *([share(*cells[agreement])] if agreement is not None else []),
                share(*cells["macs_left"]),
                share(*cells["params_left"]),
                *([milliseconds(*cells["latency_ms"])] if agreement is not None else []),
                seconds(*cells["seconds"]),
                *([("yes" if row["on_frontier"] else "no") if row["n"] else ""] if several else []),
            )
        )
    return text_table(
        f"{result['recipe']}: methods compared",
        (
            "method",
            *(["budget"] if several else []),
            "n",
            *score_titles(metric, held_out),
            "change",
            *([AGREEMENTS[agreement]] if agreement is not None else []),
            "MACs left",
            "parameters left",
            *(["latency, batch 1"] if agreement is not None else []),
            "time",
            *(["frontier"] if several else []),
        ),
        tuple(rows),
        (
            *_notes(result, metric, several),
            *choice_note(result["choice"]),
            *direction_note(metric),
            *unfinished_note(result["members"]),
            *made_with_note(result["made_with"]),
        ),
        words=("frontier",),
    )


def _notes(result: Result, metric: Metric, several: bool) -> tuple[str, ...]:
    budgets = "Budgets as shares" if several else f"Budget {result['budget']:g}"
    note = (
        f"{budgets} of the {COSTS[result['of']]}, {result['epochs']} epochs of search, "
        f"{result['finetune_epochs']} of fine-tuning; mean ± sample standard deviation over n seeds."
    )
    frontier = (
        f"On the frontier: no other row is better in {metric.label} or cost without being worse in the other; "
        f"differences within the spread, or of {share(SAME_COST)} of the cost, count as none."
    )
    return (note, frontier) if several else (note,)
