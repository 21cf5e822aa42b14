"""A comparison: several methods, budgets and seeds, everything else the same."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from depl0._util.io import atomic_write
from depl0._util.user_code import shown_spec
from depl0.app.data import shown_data
from depl0.app.methods import METHODS
from depl0.app.recipes.recipe import Recipe, folder_name, for_method, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.reports.show import fraction, with_spread
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.accelerator import is_first_process
from depl0.app.studies.measures import (
    AGREEMENTS,
    describe,
    made_with,
    made_with_note,
    mean_and_deviation,
    over_seeds,
    seeds_from,
    shown_agreement,
    unfinished_note,
)
from depl0.app.studies.pictures import write_comparison
from depl0.app.studies.study import Outcome, Result, Study, to_json
from depl0.app.studies.workers import Workers
from depl0.app.table import Table, markdown_page, text_table
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS
from depl0.gates.threshold import COSTS

DIRECTIONS = ("forward", "backward")
SAME_COST = 0.005
"""costs that differ by at most this fraction of the dense cost count as equal on the frontier"""
_T_QUANTILES = "12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131"
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
        by_budget: name members by their budgets alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        methods: Sequence[str],
        seeds: int,
        budgets: Sequence[float] = (),
        *,
        by_budget: bool = False,
    ) -> None:
        if budgets:
            recipe = with_overrides(recipe, {"gates.budget": sorted(budgets)[len(budgets) // 2]})
        if recipe.gates.budget is None:
            raise InputError(
                f"a comparison needs a budget, so that all methods may cost the same; recipe {recipe.name} has the "
                f"fixed λ {recipe.penalty.weight:g} instead.",
                hint="for example --budget 0.5.",
            )
        self.recipe, self._by_budget = recipe, by_budget
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
            self._name(method, budget, seed): with_overrides(recipe, {"run.seed": seed, "gates.budget": budget})
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

    def run(self, folder: Path, reporter: Reporter, workers: Workers | None = None) -> tuple[Study, Result, Table]:
        """Run the members that are not finished, and write the comparison's files after each of them."""
        study = Study(self.members(), folder)

        def publish(outcomes: list[Outcome]) -> tuple[Result, Table]:
            result = self.summarise(outcomes, folder)
            table = tabulate(result)
            if is_first_process():
                atomic_write(folder / "comparison.json", to_json(result))
                atomic_write(folder / "comparison.md", markdown_page(table).encode())
                write_comparison(result, folder)
            return result, table

        return study, *publish(study.run(reporter, publish, workers))

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
            ends = [] if half is None else [metric.number(mean + sign * half, sign=True) for sign in (-1, 1)]
            cells = (f"{budget:g}", str(len(differences)), metric.number(mean, sign=True), " to ".join(ends))
            rows.append((f"{first} less {second}", *cells))
    titles = ("methods", "budget", "n", f"{metric.label}, mean difference", "95 % interval")
    return text_table(f"{result['recipe']}: differences between methods, seed by seed", titles, rows)


def half_interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean (Student's t); None for fewer than two values.

    >>> round(half_interval([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return None
    quantiles = [float(word) for word in _T_QUANTILES.split()]
    return quantiles[min(len(values) - 1, len(quantiles)) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def tabulate(result: Result) -> Table:
    """Return the table of a comparison; with several budgets it marks the rows on the frontier."""
    metric, agreement = metric_in(result), shown_agreement(result["members"])
    several = len({row["budget"] for row in result["methods"]}) > 1
    held_out = f"validation_{metric.name}"
    has_held_out = any(member[held_out] is not None for member in result["members"])

    def number(key: str, show: Callable[[float], str], unit: str = "") -> Callable[[dict[str, Any]], str]:
        return lambda row: with_spread(row[key]["mean"], row[key]["sd"], show, unit) if key in row else ""

    unit = f" {metric.unit}".rstrip()
    columns: dict[str, Callable[[dict[str, Any]], str] | None] = {
        "method": lambda row: row["method"],
        "budget": (lambda row: f"{row['budget']:g}" if "budget" in row else "") if several else None,
        "n": _number_of,
        f"validation {metric.label}": number(held_out, metric.number, unit) if has_held_out else None,
        f"test {metric.label}" if has_held_out else metric.label: number(metric.name, metric.number, unit),
        "change": number("change", lambda value: metric.number(value, sign=True)),
        AGREEMENTS[agreement or "equal_answers"]: number(agreement, _percent, " %") if agreement else None,
        "MACs left": number("macs_left", _percent, " %"),
        "parameters left": number("params_left", _percent, " %"),
        "latency, batch 1": number("latency_ms", "{:.2f}".format, " ms") if agreement else None,
        "time": number("seconds", "{:,.0f}".format, " s"),
        "frontier": (lambda row: ("yes" if row["on_frontier"] else "no") if row.get("n") else "") if several else None,
    }
    shown = {title: cell for title, cell in columns.items() if cell is not None}
    rows = [*([_dense_row(result, metric)] if several else []), *result["methods"]]
    return text_table(
        f"{result['recipe']}: methods compared",
        tuple(shown),
        [[cell(row) for cell in shown.values()] for row in rows],
        (
            *_notes(result, metric, several),
            *(() if metric.higher_is_better else (f"{metric.title}: {metric.direction}.",)),
            *unfinished_note(result["members"]),
            *made_with_note(result["made_with"]),
        ),
        words=("frontier",),
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _number_of(row: dict[str, Any]) -> str:
    """Return the cell with the number of seeds of a mean."""
    if "n" not in row:
        return ""
    return str(row["n"]) if row["n"] == row["asked"] else f"{row['n']} of {row['asked']}"


def _dense_row(result: Result, metric: Metric) -> dict[str, Any]:
    known = {metric.name: result[f"dense_{metric.name}"], "macs_left": 1.0, "params_left": 1.0}
    known["latency_ms"] = result["dense_latency_ms"]
    cells = {key: mean_and_deviation([] if value is None else [value]) for key, value in known.items()}
    return {"method": "dense", **cells}


def _notes(result: Result, metric: Metric, several: bool) -> tuple[str, ...]:
    budgets = "Budgets as fractions" if several else f"Budget {result['budget']:g}"
    note = (
        f"{budgets} of the {COSTS[result['of']]}, {result['epochs']} epochs of search, "
        f"{result['finetune_epochs']} of fine-tuning; mean ± sample standard deviation over n seeds."
    )
    frontier = (
        f"On the frontier: no other row is better in {metric.label} or cost without being worse in the other; "
        f"differences within the spread, or of {fraction(SAME_COST)} of the cost, count as none."
    )
    return (note, frontier) if several else (note,)
