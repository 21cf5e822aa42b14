"""Summaries of runs that nobody has to wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def a_summary(accuracy: float, macs_left: float, dense: float | None = 99.0, **others: Any) -> dict[str, Any]:
    return {
        "dense": {"accuracy": dense, "macs": 1000, "params": 100},
        "compact": {"accuracy": accuracy, "macs": round(1000 * macs_left), "params": 50},
        "budget_reached": macs_left,
        "macs_left": macs_left,
        "params_left": macs_left / 2,
        "seconds": 61.4,
        **others,
    }


def finish_run(folder: Path, summary: dict[str, Any]) -> None:
    """Leave what a finished run leaves, as far as a study looks at it."""
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    environment = {"commit": "0123456789abcdef", "packages": {"depl0": "0.1.0", "torch": "2.13.0"}}
    (folder / "environment.json").write_text(json.dumps(environment))
