"""The history of open probabilities: gate by epoch, for every group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depl0.app.runs.gate_log import SCALE

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GateHistory:
    """Open probabilities of every gate at every epoch."""

    epochs: list[float]
    groups: dict[str, Matrix]
    """group -> (gates, epochs)"""

    @property
    def num_gates(self) -> int:
        """Return the number of gates."""
        return sum(len(matrix) for matrix in self.groups.values())


def packed(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with its numbers as arrays: a tenth of the memory of lists."""
    for key, kind in (("open", np.uint16), ("kept", np.uint32)):
        if line.get(key):
            line[key] = {name: np.asarray(values, dtype=kind) for name, values in line[key].items()}
    return line


def read_gates(lines: Sequence[dict[str, Any]]) -> GateHistory | None:
    """Make a history of the lines of ``gates.jsonl``.

    Where channels were cut during the search, later lines have fewer gates; those that are gone are closed. A line says
    under ``kept`` which gates it has; where it does not, the likeliest ones of the line before are meant.
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
            before = matrix[:, max(column - 1, 0)]
            matrix[_places(len(first), len(values), (line.get("kept") or {}).get(name), before), column] = values
        groups[name] = matrix
    return GateHistory([line["epoch"] for line in lines], groups)


def _places(size: int, found: int, kept: Any, before: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    if found == size:
        return np.arange(size)
    if kept is not None and len(kept) == found and found and int(np.max(kept)) < size:
        return np.asarray(kept, dtype=np.intp)
    return np.sort(np.argsort(-before, kind="stable")[:found])
