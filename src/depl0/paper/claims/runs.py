"""The runs that claims are judged by: what each one is an example of, and its figures."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch

from depl0._util import io
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sections import GatesSection
from depl0.app.recipes.toml import read_recipe, with_overrides
from depl0.app.runs import schema as content
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.gate_log import SCALE
from depl0.app.studies.measures import versions_of
from depl0.app.studies.study import TRIALS
from depl0.app.tasks import Metric, metric_in
from depl0.errors import FormatError, InputError
from depl0.gates.hard_concrete import closing_log_alpha, open_probability
from depl0.paper.claims.settings import OF_AN_ARM, Setting, recorded_setting, setting_of

L0_HC, CONTROL, CONST, START = "l0-hc", "control", "fc-const", "l0-hc-start"
CONTROLS = {CONST: CONST, "independent-fc": START, "fc-frozen": "fc-frozen", "fc-shuffled": "fc-shuffled"}
"""what the generators of :mod:`depl0.paper.controls` are called here"""
_SAID_ALONE = ("generator", "direction")


@final
@dataclass(frozen=True)
class ClaimRun:
    """One finished run."""

    label: str
    setting: Setting
    """everything that runs which are compared have in common"""
    arm: str
    """what differs: ``dep-l0``, ``dep-l0:backward``, ``dep-l0:lstm``, ``l0-hc``, ``control`` (W = 0), ``fc-const``"""
    seed: int
    metric: Metric
    score: float
    cost: float
    """the share of what the budget counts that is left; with λ, of the MACs"""
    params: float | None
    """the share of the parameters that is left"""
    weight: float | None
    """λ; None: a budget"""
    converged: float | None
    """the epoch in which the search noticed that its gates had come to rest; None: not before its end"""
    settled: float | None
    """the first epoch after which at most 1 % of the gates differ from the final set"""
    settled_step: float | None
    """the same in steps; None: gates were logged once an epoch"""
    layers: float | None
    """how many layers have gates"""
    unevenness: float | None
    """standard deviation over gated layers of the share of gates that is closed"""
    gates_that_differ: float | None
    """how many gates would differ with W = 0; None: not measured, or there is no W"""
    closed_at_start: float | None
    """the share of the gates that was closed before the first step"""
    made_with: dict[str, str | None] = field(default_factory=dict)
    """commit and versions"""
    chosen: dict[str, Any] = field(default_factory=dict)
    """what a comparison chose for this kind of runs on held-out images, by recipe field"""

    def to_dict(self, setting: str) -> dict[str, Any]:
        """Return plain values, with the setting by its name and without where the run lies on a machine."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {**values, "setting": setting, "metric": self.metric.to_dict()}


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among these and below them (a study's members), without the trials of a choice."""
    hint = "pass folders that depl0 prune, compare or ablation wrote, or a claims.json."
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder.", hint=hint)
        own = [path] if (path / "recipe.toml").is_file() else []
        below = own or sorted(file.parent for file in path.rglob("recipe.toml"))
        runs = [run for run in below if TRIALS not in run.relative_to(path).parts]
        if not runs:
            raise InputError(f"{path} holds no run.", hint=hint)
        found |= dict.fromkeys(runs)
    return list(found)


def read_claim_run(path: Path, control: str, chosen: Sequence[str] = ()) -> ClaimRun | None:
    """Read a run; None: it is not finished, or its method is neither Dep-L0 nor L0-HC.

    ``control`` says by which recipe field a run of Dep-L0 is the control, for example ``gates.generator=bias``;
    ``chosen`` are the fields that were chosen for each kind of runs.
    """
    recipe, folder = read_recipe(path / "recipe.toml"), RunFolder(path)
    summary = folder.summary()
    arm = arm_of(recipe, control)
    if summary is None or arm is None:
        return None
    try:
        content.SUMMARY(summary, "")
        content.check_finished(summary)
        lines = folder.gates.read()
        for line in lines:
            content.GATES(line, "")
    except (content.Wrong, FormatError) as error:
        raise InputError(f"{path} is damaged: {error}.", hint="copy it again from where it was written.") from error
    metric, choices = metric_in(summary), dict.fromkeys(chosen, "") | _choice(path)
    groups, settled = list((summary.get("groups") or {}).values()), summary.get("settled_epoch")
    closed = [1 - group["open"] / group["gates"] for group in groups if group["gates"]]
    return ClaimRun(
        label="/".join(path.resolve().parts[-2:]),
        setting=setting_of(recipe, choices),
        arm=arm,
        seed=recipe.run.seed,
        metric=metric,
        score=float(summary["compact"][metric.name]),
        cost=float(summary["budget_reached"] if recipe.gates.budget is not None else summary["macs_left"]),
        params=summary["params_left"],
        weight=None if recipe.gates.budget is not None else recipe.penalty.weight,
        converged=(summary.get("convergence") or {}).get("epoch"),
        settled=settled,
        settled_step=_step_of(lines, settled) if recipe.run.gates_steps else None,
        layers=len(groups) or None,
        unevenness=statistics.pstdev(closed) if len(closed) > 1 else None,
        gates_that_differ=(summary.get("dependency") or {}).get("gates_that_differ"),
        closed_at_start=_closed_at_start(lines, recipe),
        made_with=versions_of(path),
        chosen={name: _value(recipe, name) for name in choices},
    )


def arm_of(recipe: Recipe, control: str) -> str | None:
    """Return what a run is an example of; None: of no claim.

    >>> from depl0.app.recipes import catalog
    >>> from depl0.app.recipes.toml import with_overrides
    >>> base = catalog.get("digits")
    >>> generators = ("fc", "lstm", "bias", "independent", "fc-const")
    >>> [arm_of(with_overrides(base, {"gates.generator": name}), "gates.generator=bias") for name in generators]
    ['dep-l0', 'dep-l0:lstm', 'control', 'l0-hc', 'fc-const']
    """
    gates = recipe.gates
    if gates.method == "dep-l0" and _is_control(recipe, control):
        return CONTROL
    if gates.method == "l0-hc" or (gates.method == "dep-l0" and gates.generator == "independent"):
        return L0_HC
    if gates.method != "dep-l0":
        return None
    usual = GatesSection()
    told = {name: str(getattr(gates, name)) for name in OF_AN_ARM if getattr(gates, name) != getattr(usual, name)}
    if recipe.search.dependency:
        told["dependency"] = str(recipe.search.dependency)
    if list(told) == ["generator"] and gates.generator in CONTROLS:
        return CONTROLS[gates.generator]
    return ":".join(["dep-l0", *(text if name in _SAID_ALONE else f"{name}={text}" for name, text in told.items())])


def _is_control(recipe: Recipe, control: str) -> bool:
    field, equals, value = control.partition("=")
    if not equals:
        raise InputError(
            f"--control takes section.field=value, got {control!r} instead.",
            hint="for example --control gates.generator=bias.",
        )
    return with_overrides(recipe, {field.strip(): value.strip()}) == recipe


def _choice(run: Path) -> dict[str, str]:
    """Return the field that the comparison a run belongs to chose for each method, and from what."""
    for folder in list(run.resolve().parents)[:3]:  # METHOD/budget-SHARE/seed-NUMBER
        file = folder / "comparison.json"
        if file.is_file():
            try:
                found = io.read_json(file).get("choice")
                _CHOICE(found or {"field": "", "values": []}, "choice")
            except (OSError, ValueError, AttributeError, RecursionError, content.Wrong) as error:
                hint = "run the comparison once more: it writes its table again."
                raise InputError(f"{file} is damaged: {error}.", hint=hint) from error
            return {found["field"]: f" from {', '.join(found['values'])}"} if found else {}
    return {}


def _value(recipe: Recipe, field: str) -> Any:
    section, _, name = field.partition(".")
    if not hasattr(getattr(recipe, section, None), name):
        raise InputError(f"recipes have no field {field!r}.", hint="depl0 recipes fields lists them.")
    return getattr(getattr(recipe, section), name)


class _Choice(content.Fields):
    field: content.Text
    values: list[content.Text]


_CHOICE = content.Check(_Choice)


# -- figures ---------------------------------------------------------------------------------------------------------


def _step_of(lines: Iterable[dict[str, Any]], epoch: float | None) -> float | None:
    """Return the step of the line that was logged at this point of the search."""
    found = (line.get("step") for line in lines if line.get("phase") == "search" and line.get("epoch") == epoch)
    return next(found, None)


def _closed_at_start(lines: Iterable[dict[str, Any]], recipe: Recipe) -> float | None:
    first = next((line for line in lines if line.get("epoch") == 0 and line.get("open")), None)
    if first is None:
        return None
    least = _least(recipe)
    return statistics.fmean(float(value <= least) for values in first["open"].values() for value in values)


def _least(recipe: Recipe) -> float:
    return SCALE * float(open_probability(torch.tensor(closing_log_alpha(recipe.gates.evaluation))))


# -- runs of an earlier claims.json: their folders may be on another machine, or deleted -------------------------------

_FIGURES = (
    *("params", "weight", "converged", "settled", "settled_step", "layers", "unevenness"),
    *("gates_that_differ", "closed_at_start"),
)


class _Setting(content.Fields):
    description: content.Text
    recipe: dict[content.Text, dict[content.Text, Any]] | None = None


class _Run(content.Fields):
    label: content.Text
    setting: content.Text
    arm: content.Text
    seed: content.Number
    score: content.Number
    cost: content.Number
    params: content.Count | None = None
    weight: content.Count | None = None
    converged: content.Count | None = None
    settled: content.Count | None = None
    settled_step: content.Count | None = None
    layers: content.Count | None = None
    unevenness: content.Count | None = None
    gates_that_differ: content.Count | None = None
    closed_at_start: content.Count | None = None
    made_with: dict[content.Text, content.Text | None]
    chosen: dict[content.Text, Any] | None = None


class _File(content.Fields):
    control: content.Text
    settings: dict[content.Text, _Setting]
    runs: list[_Run]


_FILE = content.Check(_File)


def read_recorded(path: Path, control: str) -> list[ClaimRun]:
    """Read the runs of a ``claims.json``; its kinds of runs must have been told apart by the same control."""
    try:
        found = io.read_json(path)
        _FILE(found, "")
        settings = {name: _setting(name, told) for name, told in found["settings"].items()}
        runs = [_run(row, settings) for row in found["runs"]]
    except (OSError, ValueError, RecursionError, content.Wrong, FormatError) as error:
        hint = "pass a claims.json that depl0 paper claims wrote, or folders of runs."
        raise InputError(f"{path} is not a valid claims.json: {error}.", hint=hint) from error
    if found["control"] != control:
        raise InputError(
            f"the control of {path} is {found['control']!r}, and here it is {control!r}.",
            hint=f"judge with --control {found['control']}, or from the run folders.",
        )
    return runs


def _setting(name: str, told: dict[str, Any]) -> Setting:
    if told.get("recipe") is None:
        return Setting(told["description"], None, apart=name)
    return recorded_setting(told["recipe"])


def _run(row: dict[str, Any], settings: dict[str, Setting]) -> ClaimRun:
    if row["setting"] not in settings:
        raise content.expected(f"the setting of {row['label']}", f"one of {', '.join(settings)}", row["setting"])
    return ClaimRun(
        label=row["label"],
        setting=settings[row["setting"]],
        arm=row["arm"],
        seed=int(row["seed"]),
        metric=metric_in(row),
        score=float(row["score"]),
        cost=float(row["cost"]),
        **{name: row.get(name) for name in _FIGURES},
        made_with=row["made_with"],
        chosen=row.get("chosen") or {},
    )


def without_repeats(runs: Iterable[ClaimRun]) -> list[ClaimRun]:
    """Leave out what is there twice: a run folder that an earlier file tells of too, or a file that repeats another.

    A run whose whole setting is not known is the same as one that is like it in everything else.
    """
    runs = list(runs)
    whole = {_identity(run) for run in runs if run.setting.recipe is not None}
    kept: dict[object, ClaimRun] = {}
    for run in runs:
        if run.setting.recipe is None and _identity(run) in whole:
            continue
        kept.setdefault((_identity(run), run.setting), run)
    return list(kept.values())


def _identity(run: ClaimRun) -> tuple[object, ...]:
    return (run.label, run.arm, run.weight, run.seed, run.metric, run.score, run.cost)
