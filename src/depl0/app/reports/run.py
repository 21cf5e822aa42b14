"""The data of a run for reports, read only from its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depl0._util import io
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe
from depl0.app.tasks import Metric, metric_in
from depl0.errors import InputError

DETAILED = 20
"""number of runs in a report with their own figures and section; further ones are only rows of the table"""


@dataclass(frozen=True)
class Layer:
    """One bar of the structure figure."""

    name: str
    channels: int
    kept: int

    @property
    def pruned(self) -> float:
        """Return the removed fraction."""
        return 1 - self.kept / self.channels if self.channels else math.nan


@dataclass(frozen=True)
class Run:
    """Content of the folder of a finished run."""

    label: str
    """name of the run in the report, unique within the report"""
    path: Path
    recipe: Recipe
    environment: dict[str, Any]
    summary: dict[str, Any]
    epochs: list[dict[str, Any]]
    """the epoch lines of ``metrics.jsonl``"""
    events: list[dict[str, Any]]
    """its other lines: compaction, freezing"""
    answers: dict[str, Any]
    """content of ``answers.json``"""

    def get(self, *keys: str) -> Any:
        """Return a value of the summary, or None if it or one of its parents is missing."""
        return dig(self.summary, *keys)

    @property
    def metric(self) -> Metric:
        """Return the metric of the network."""
        return metric_in(self.summary)

    @property
    def split(self) -> str:
        """Return the split on which epochs were evaluated: ``validation`` if images were held out, else ``test``."""
        return "validation" if self.recipe.data.validation else "test"

    def value(self, network: str, split: str = "test") -> float | None:
        """Return the metric of the ``dense`` or the ``compact`` network on a split."""
        parents = ("validation",) if split == "validation" else ()
        found: float | None = self.get(*parents, network, self.metric.name)
        return found

    @property
    def method(self) -> str:
        """Return the method, with its direction if it has one."""
        gates = self.recipe.gates
        return f"{gates.method} ({gates.direction})" if gates.method == "dep-l0" else gates.method

    @property
    def layers(self) -> list[Layer]:
        """Return the layers with gates in order of execution."""
        table = self.get("layers") or []
        return [Layer(row["layer"], row["channels"], row["kept"]) for row in table if row.get("prunable")]


def dig(value: Any, *keys: str) -> Any:
    """Return the value under these nested keys, or None."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read several runs, and label each with its shortest path suffix that is unique."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return [read_run(path, label) for path, label in zip(paths, labels, strict=True)]
    raise InputError("the same run is given twice.", hint="name every run once.")


def read_run(path: Path, label: str | None = None) -> Run:
    """Read the folder of a finished run.

    Raises:
        InputError: there is no run, it has not finished, or one of its files is damaged.
    """
    if not (path / "recipe.toml").is_file():
        reason = "holds no run: there is no recipe.toml" if path.is_dir() else "is not the folder of a run"
        raise InputError(f"{path} {reason}.", hint="pass a folder that depl0 prune wrote.")
    if not (path / "summary.json").is_file():
        hint = "continue it with --resume; tensorboard --logdir shows the curves so far."
        raise InputError(f"the run {path} has not finished.", hint=hint)
    lines = _text(path / "metrics.jsonl", io.MAX_LINES).splitlines()
    metrics = [_parsed(path / "metrics.jsonl", line, f" in line {place}") for place, line in enumerate(lines, start=1)]
    return Run(
        label=label or path.name,
        path=path,
        recipe=read_recipe(path / "recipe.toml"),
        environment=_json(path / "environment.json"),
        summary=_json(path / "summary.json"),
        epochs=[line for line in metrics if "event" not in line],
        events=[line for line in metrics if "event" in line],
        answers=_json(path / "answers.json"),
    )


def _text(path: Path, limit: int) -> str:
    try:
        return io.read_bounded(path, limit).decode() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path, _text(path, io.MAX_JSON)) if path.exists() else {}


def _parsed(path: Path, text: str, place: str = "") -> dict[str, Any]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__} in place of an object")
    except (ValueError, RecursionError) as error:
        hint = "copy it again from where it was written."
        raise InputError(f"{path} is damaged{place}: {error}.", hint=hint) from error
    return found
