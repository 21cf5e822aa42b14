"""Runs that an earlier ``claims.json`` tells of: their folders may be on another machine, or gone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from depl0._util import io
from depl0.app.runs import schema as content
from depl0.app.studies.measures import MADE_WITH
from depl0.app.tasks import metric_in
from depl0.errors import FormatError, InputError
from depl0.paper.claims.runs import L0_HC, ClaimRun
from depl0.paper.claims.settings import Setting, recorded_setting

_FIGURES = ("converged", "settled", "unevenness", "closed_at_start")


class _Run(content.Fields):
    label: content.Text
    setting: content.Text
    arm: content.Text
    seed: content.Number
    score: content.Number
    cost: content.Number
    converged: content.Count | None = None
    settled: content.Count | None = None
    unevenness: content.Count | None = None
    closed_at_start: content.Count | None = None
    made_with: dict[content.Text, content.Text | None] | None = None
    chosen: dict[content.Text, Any] | None = None


class _File(content.Fields):
    control: content.Text
    settings: dict[content.Text, Any]
    runs: list[_Run]
    made_with: dict[content.Text, list[content.Text]] | None = None


class _Setting(content.Fields):
    description: content.Text | None = None
    recipe: dict[content.Text, dict[content.Text, Any]] | None = None


_FILE, _SETTING = content.Check(_File), content.Check(_Setting)
_RENAMED = {"dep-l0:independent": L0_HC}
"""what kinds of runs were called in older files"""


def read_recorded(path: Path, control: str) -> list[ClaimRun]:
    """Read the runs of a ``claims.json``; its kinds of runs must have been told apart by the same control."""
    try:
        found = json.loads(io.read_bounded(path, io.MAX_JSON))
        _FILE(found, "")
        settings = {name: _setting(name, told) for name, told in found["settings"].items()}
        runs = [_run(row, settings, found.get("made_with") or {}) for row in found["runs"]]
    except (OSError, ValueError, RecursionError, content.Wrong, FormatError, io.TooLarge) as error:
        hint = "pass a claims.json that depl0 paper claims wrote, or folders of runs."
        raise InputError(f"{path} is no claims.json that can be read: {error}.", hint=hint) from error
    if found["control"] != control:
        raise InputError(
            f"the control of {path} is {found['control']!r}, and here it is {control!r}.",
            hint=f"judge with --control {found['control']}, or from the run folders.",
        )
    return runs


def _setting(name: str, told: Any) -> Setting:
    if isinstance(told, str):  # older files have the description alone
        return Setting(told, None, apart=name)
    _SETTING(told, f"settings.{name}")
    if told.get("recipe") is None:
        return Setting(str(told.get("description")), None, apart=name)
    return recorded_setting(told["recipe"])


def _run(row: dict[str, Any], settings: dict[str, Setting], made_with: dict[str, list[str]]) -> ClaimRun:
    if row["setting"] not in settings:
        raise content.expected(f"the setting of {row['label']}", f"one of {', '.join(settings)}", row["setting"])
    together = {name: " or ".join(made_with.get(name, [])) or None for name in MADE_WITH}  # older: one for all runs
    return ClaimRun(
        label=row["label"],
        setting=settings[row["setting"]],
        arm=_RENAMED.get(row["arm"], row["arm"]),
        seed=int(row["seed"]),
        metric=metric_in(row),
        score=float(row["score"]),
        cost=float(row["cost"]),
        **{name: row.get(name) for name in _FIGURES},
        made_with=row.get("made_with") or together,
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
    return (run.label, run.arm, run.seed, run.metric, run.score, run.cost)
