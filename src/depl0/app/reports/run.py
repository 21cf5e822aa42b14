"""The data of a run for reports, read only from its folder."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from depl0._util import io
from depl0.app.runs import schema as content
from depl0.app.runs.gate_log import SCALE
from depl0.app.tasks import ACCURACY, TASKS, Metric, metric_in
from depl0.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Matrix = npt.NDArray[np.float32]
Kind = type[content.Fields]


@dataclass(frozen=True)
class GateHistory:
    """Open probabilities of every gate at every epoch."""

    epochs: list[float]
    groups: dict[str, Matrix]
    """group -> (gates, epochs)"""


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

    def value(self, network: str) -> float | None:
        """Return the metric of the ``dense`` or the ``compact`` network."""
        found: float | None = self.get(network, self.metric.name)
        return found

    def validation(self, network: str) -> float | None:
        """Return the same on the images held out for choices, if any."""
        found: float | None = self.get("validation", network, self.metric.name)
        return found

    @property
    def judged_dense(self) -> float | None:
        """Return the dense network's metric on the images that epochs are evaluated on."""
        return self.value("dense") if self.split == "test" else self.validation("dense")

    @property
    def method(self) -> str:
        """Return the method, with its direction if it has one."""
        gates = self.recipe.get("gates", {})
        name = str(gates.get("method", MISSING_METHOD))
        return f"{name} ({gates['direction']})" if name == "dep-l0" and "direction" in gates else name

    @property
    def layers(self) -> list[Layer]:
        """Return the layers with gates in order of execution."""
        table = self.get("layers") or []
        return [Layer(row["layer"], row["channels"], row["kept"]) for row in table if row.get("prunable")]


MISSING_METHOD = "?"
DETAILED = 20
"""number of runs in a report with their own figures and section; further ones are only rows of the table"""
_AGAIN = "copy it again from where it was written."


@dataclass(frozen=True)
class Layer:
    """One bar of the structure figure."""

    name: str
    channels: int
    kept: int
    pruned: float = field(init=False)
    """the removed fraction"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pruned", 1 - self.kept / self.channels if self.channels else math.nan)


def dig(value: Any, *keys: str) -> Any:
    """Return the value under these nested keys, or None."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def read_runs(paths: Sequence[Path], detailed: int = DETAILED) -> list[Run]:
    """Read several runs and give each a unique label. Gates are only read for the first ``detailed`` runs."""
    labels = _labels(paths)
    return [
        read_run(path, label, gates=place < detailed)
        for place, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]


def read_run(path: Path, label: str | None = None, *, gates: bool = True) -> Run:
    """Read the folder of a run, finished or not."""
    if not path.is_dir():
        raise InputError(f"{path} is not the folder of a run.", hint="pass a folder that depl0 prune wrote.")
    if not (path / "recipe.toml").is_file():
        raise InputError(f"{path} holds no run: there is no recipe.toml.", hint="pass a folder that depl0 prune wrote.")
    text = _text(path / "recipe.toml")
    try:
        recipe = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path / 'recipe.toml'} is not valid TOML: {error}.") from error
    _validate(path / "recipe.toml", recipe, content.RECIPE)
    lines = _json_lines(path / "metrics.jsonl", _kind_of)
    return Run(
        label=label or path.name,
        path=path,
        recipe=recipe,
        recipe_text=text,
        environment=_json_object(path / "environment.json", content.ENVIRONMENT),
        summary=_json_object(path / "summary.json", content.SUMMARY),
        epochs=[line for line in lines if "event" not in line],
        events=[line for line in lines if "event" in line],
        gates=read_gates(_json_lines(path / "gates.jsonl", lambda line: content.GATES, packed)) if gates else None,
    )


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the shortest path suffixes that distinguish the runs."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-length:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    raise InputError("the same run is given twice.", hint="name every run once.")


def _text(path: Path, limit: int = io.MAX_TEXT) -> str:
    try:
        return io.read_bounded(path, limit).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _json_object(path: Path, kind: Kind) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(_text(path, io.MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.", hint=_AGAIN) from error
    _validate(path, found, kind)
    return found


def _validate(path: Path, found: dict[str, Any], kind: Kind, line: str = "") -> None:
    try:
        content.validate(kind, found)
    except ValueError as error:
        raise InputError(f"{path} is damaged{line}: {error}.", hint=_AGAIN) from error


def _kind_of(line: dict[str, Any]) -> Kind:
    return content.EventFields if isinstance(line, dict) and "event" in line else content.EpochFields


def _json_lines(
    path: Path,
    kind_of: Callable[[dict[str, Any]], Kind],
    shorten: Callable[[dict[str, Any]], dict[str, Any]] = lambda line: line,
) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a truncated last line comes from an active or killed run.

    ``shorten`` makes each line smaller before the next one is read.
    """
    if not path.exists():
        return []
    lines = _text(path, io.MAX_LINES).splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise InputError(f"{path} is damaged in line {number}: {error}.", hint=_AGAIN) from error
        _validate(path, value, kind_of(value), f" in line {number}")
        found.append(shorten(value))
    return found


# -- gates -------------------------------------------------------------------------------------------------------------


def packed(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with its numbers as arrays: a tenth of the memory of lists."""
    for key, kind in (("open", np.uint16), ("kept", np.uint32)):
        if line.get(key):
            line[key] = {name: np.asarray(values, dtype=kind) for name, values in line[key].items()}
    return line


def read_gates(lines: Sequence[dict[str, Any]]) -> GateHistory | None:
    """Return the history of gates from the lines of ``gates.jsonl``.

    If channels were cut during the search, later lines have fewer gates and list them under ``kept``; the removed gates
    are closed.
    """
    latest = {line["epoch"]: line for line in lines if line.get("open") and line.get("epoch") is not None}
    lines = [latest[epoch] for epoch in sorted(latest)]
    if not lines or not any(len(values) for values in lines[0]["open"].values()):
        return None
    groups: dict[str, Matrix] = {}
    for name, first in lines[0]["open"].items():
        matrix = np.zeros((len(first), len(lines)), dtype=np.float32)
        for column, line in enumerate(lines):
            values = np.asarray(line["open"].get(name, []), dtype=np.float32)[: len(first)] / SCALE
            kept = (line.get("kept") or {}).get(name)
            places = np.arange(len(values)) if kept is None else np.asarray(kept, dtype=np.intp)[: len(values)]
            within = places < len(first)
            matrix[places[within], column] = values[: len(places)][within]
        groups[name] = matrix
    return GateHistory([line["epoch"] for line in lines], groups)
