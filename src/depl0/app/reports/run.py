"""The data of a run for reports, read only from its folder."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from depl0._util import io
from depl0.app.runs.records import SCALE
from depl0.app.tasks import ACCURACY, TASKS, Metric, metric_in
from depl0.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Matrix = npt.NDArray[np.float32]

DETAILED = 20
"""number of runs in a report with their own figures and section; further ones are only rows of the table"""


@dataclass(frozen=True)
class GateHistory:
    """Open probabilities of every gate at every epoch: a matrix (gates, epochs) for each group."""

    epochs: list[float]
    groups: dict[str, Matrix]


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
    """Content of a run's folder. Missing parts of an unfinished run are empty or None."""

    label: str
    """name of the run in the report, unique within the report"""
    path: Path
    recipe: dict[str, Any]
    recipe_text: str
    environment: dict[str, Any]
    summary: dict[str, Any]
    epochs: list[dict[str, Any]]
    """the epoch lines of ``metrics.jsonl``"""
    events: list[dict[str, Any]]
    """its other lines: convergence, compaction, freezing"""
    gates: GateHistory | None
    answers: dict[str, Any]
    """content of ``answers.json``"""

    @property
    def is_finished(self) -> bool:
        """Return True if there is a summary."""
        return bool(self.summary)

    def get(self, *keys: str) -> Any:
        """Return a value of the summary, or None if it or one of its parents is missing."""
        return dig(self.summary, *keys)

    @property
    def metric(self) -> Metric:
        """Return the metric of the network; for an unfinished run, it is derived from recipe and epochs."""
        if self.summary:
            return metric_in(self.summary)
        spec = dig(self.recipe, "task", "spec")
        if spec is None or spec in TASKS:
            return ACCURACY if spec is None else TASKS[spec].metric
        prefix = f"{self.split}_"
        keys = [key for line in self.epochs[-1:] for key in line if key.startswith(prefix)]
        return Metric(keys[0].removeprefix(prefix)) if keys else ACCURACY

    @property
    def split(self) -> str:
        """Return the split on which epochs were evaluated: ``validation`` if images were held out, else ``test``."""
        return "validation" if dig(self.recipe, "data", "validation") else "test"

    def value(self, network: str, split: str = "test") -> float | None:
        """Return the metric of the ``dense`` or the ``compact`` network on a split."""
        parents = ("validation",) if split == "validation" else ()
        found: float | None = self.get(*parents, network, self.metric.name)
        return found

    def named(self, section: str) -> Any:
        """Return the spec of the ``model`` or the ``data``, without local folders if the run has finished."""
        return self.get(section) or dig(self.recipe, section, "spec")

    @property
    def method(self) -> str:
        """Return the method, with its direction if it has one."""
        gates = self.recipe.get("gates", {})
        name = str(gates.get("method", "?"))
        return f"{name} ({gates['direction']})" if name == "dep-l0" and "direction" in gates else name

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
    """Read several runs, and label each with its shortest path suffix that is unique.

    Gates are only read for the runs that are shown in detail.
    """
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return [read_run(path, labels[place], gates=place < DETAILED) for place, path in enumerate(paths)]
    raise InputError("the same run is given twice.", hint="name every run once.")


def read_run(path: Path, label: str | None = None, *, gates: bool = True) -> Run:
    """Read the folder of a run, finished or not."""
    if not (path / "recipe.toml").is_file():
        reason = "holds no run: there is no recipe.toml" if path.is_dir() else "is not the folder of a run"
        raise InputError(f"{path} {reason}.", hint="pass a folder that depl0 prune wrote.")
    text = _text(path / "recipe.toml", io.MAX_TEXT)
    lines = list(_json_lines(path / "metrics.jsonl"))
    return Run(
        label=label or path.name,
        path=path,
        recipe=_parsed(path / "recipe.toml", text, tomllib.loads),
        recipe_text=text,
        environment=_json(path / "environment.json"),
        summary=_json(path / "summary.json"),
        epochs=[line for line in lines if "event" not in line],
        events=[line for line in lines if "event" in line],
        gates=read_gates(_json_lines(path / "gates.jsonl")) if gates else None,
        answers=_json(path / "answers.json"),
    )


def read_gates(lines: Iterable[dict[str, Any]]) -> GateHistory | None:
    """Return the history of gates from the lines of ``gates.jsonl``.

    If channels were cut during the search, later lines have fewer gates and list them under ``kept``; the removed gates
    are closed.
    """
    found: dict[float, dict[str, Matrix]] = {}
    first: dict[str, int] = {}
    for line in lines:
        if not line.get("open") or line.get("epoch") is None:
            continue
        first = first or {name: len(values) for name, values in line["open"].items()}
        column = {name: np.zeros(gates, dtype=np.float32) for name, gates in first.items()}
        for name, values in line["open"].items():
            places = np.asarray((line.get("kept") or {}).get(name, range(len(values))), dtype=np.intp)[: len(values)]
            within = places < first.get(name, 0)
            if within.any():
                column[name][places[within]] = np.asarray(values, dtype=np.float32)[: len(places)][within] / SCALE
        found[line["epoch"]] = column  # an epoch that was repeated replaces the first one
    epochs = sorted(found)
    if not any(first.values()):
        return None
    return GateHistory(epochs, {name: np.stack([found[epoch][name] for epoch in epochs], 1) for name in first})


# -- files -------------------------------------------------------------------------------------------------------------


def _text(path: Path, limit: int) -> str:
    try:
        return io.read_bounded(path, limit).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _parsed(path: Path, text: str, parse: Callable[[str], Any], place: str = "") -> dict[str, Any]:
    try:
        found = parse(text)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__} in place of an object")
    except (ValueError, RecursionError) as error:
        hint = "copy it again from where it was written."
        raise InputError(f"{path} is damaged{place}: {error}.", hint=hint) from error
    return found


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path, _text(path, io.MAX_JSON), json.loads) if path.exists() else {}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; a last one without an end comes from an active or killed run and is left out."""
    lines = _text(path, io.MAX_LINES).split("\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        yield _parsed(path, line, json.loads, f" in line {number}")
