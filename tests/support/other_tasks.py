"""Runs of tasks that are no classification, made of the known run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.runs import write_run

RMSE = {"name": "rmse", "unit": "mm", "higher_is_better": False}


def write_regression(folder: Path, task: str = "regression", **changes: Any) -> Path:
    """Write a finished run of a regression: the dense network is off by 0.5 mm, the compact one by 0.525 mm."""
    write_run(folder)
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text() + f'\n[task]\nspec = "{task}"\n')
    summary = json.loads((folder / "summary.json").read_text())
    summary["metric"] = RMSE
    for network, error in (("dense", 0.5), ("compact", 0.525)):
        del summary[network]["accuracy"]
        summary[network]["rmse"] = error
    summary["freezing"] = {"rmse_before": 0.6, "rmse_after": 0.7, "gates_closed": 1}
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        if line.pop("test_accuracy", None) is not None:
            del line["train_accuracy"]
            line |= {"test_rmse": 9.0 if number == 0 else 0.6 - 0.01 * number, "train_rmse": 0.4}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
