"""Experiment trackers of a run: its parameters, its curves, its result, and the pruned model as an artifact.

TensorBoard writes to the folder ``tensorboard`` of the run; Weights & Biases and MLflow have a run in the project
``depl0`` that is named after the run's folder. This is the same for one tracker and for several.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.folder import RunFolder
from depl0.app.runtime.accelerator import any_process
from depl0.errors import InputError

PROJECT = "depl0"


def start_trackers(accelerator: Accelerator, recipe: Recipe, folder: Path, names: Iterable[str]) -> None:
    """Start trackers on rank 0. All processes must call this together.

    Raises:
        InputError: a tracker does not start.
    """
    failed: InputError | None = None
    for name in names if accelerator.is_main_process else ():
        try:
            tracker = _make(name, folder)
            tracker.start()
            tracker.store_init_configuration(parameters(recipe))
        except Exception as error:  # a tracker's package may raise any exception
            finish_trackers(accelerator)
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            others = json.dumps([other for other in recipe.run.trackers if other != name])
            failed = InputError(
                f"the tracker {name} does not start: {type(error).__name__}: {reason}",
                hint=f"check its settings and its server, or train without it: --set 'run.trackers={others}'.",
            )
            break
        accelerator.trackers.append(tracker)
    (any_failed,) = any_process(accelerator, failed is not None)
    if any_failed:
        raise failed or InputError("the first process cannot start a tracker.")


def _make(name: str, folder: Path) -> Any:
    kind = LOGGER_TYPE_TO_CLASS[name]
    if name == "tensorboard":
        return kind("tensorboard", folder)
    title = folder.resolve().name
    return kind(PROJECT, run_name=title) if name == "mlflow" else kind(PROJECT, name=title)


def parameters(recipe: Recipe) -> dict[str, str | int | float | bool]:
    """Return the parameters of a run for trackers."""
    gates = recipe.gates
    found: dict[str, Any] = {}
    found["recipe"], found["model"], found["data"] = recipe.name, recipe.model.spec, recipe.data.spec
    found["method"], found["budget"], found["budget_of"] = gates.method, gates.budget, gates.of
    if gates.method == "dep-l0":
        found["generator"], found["direction"] = gates.generator, gates.direction
    found["seed"], found["batch_size"] = recipe.run.seed, recipe.data.batch_size
    found["learning_rate"] = recipe.weight_optimizer.lr
    found["search_epochs"], found["finetune_epochs"] = recipe.search_epochs, recipe.finetune_epochs
    return {name: value for name, value in found.items() if value is not None}


def track_result(accelerator: Accelerator, folder: RunFolder, summary: dict[str, Any]) -> None:
    """Log the dense against the pruned network, and the pruned model with the run's files as an artifact."""
    accelerator.log(result_scalars(summary), step=summary["steps"])
    for tracker in accelerator.trackers:
        if tracker.name == "mlflow":
            mlflow = import_module("mlflow")
            for path in _artifacts(folder):
                mlflow.log_artifact(str(path), "compact" if path.parent == folder.compact else None)
        elif tracker.name == "wandb":
            artifact = import_module("wandb").Artifact(f"pruned-{folder.path.resolve().name}", type="model")
            for path in _artifacts(folder):
                artifact.add_file(str(path), path.relative_to(folder.path).as_posix())
            tracker.tracker.log_artifact(artifact)


def result_scalars(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of both networks: ``result/dense/accuracy``, ``result/pruned/accuracy``, …."""
    found = {
        f"result/{name}/{key}": float(value)
        for name, network in (("dense", summary["dense"]), ("pruned", summary["compact"]))
        for key, value in network.items()
        if isinstance(value, (int, float))
    }
    return {**found, "result/macs_left": summary["macs_left"], "result/params_left": summary["params_left"]}


def _artifacts(folder: RunFolder) -> list[Path]:
    files = [folder.path / name for name in ("recipe.toml", "summary.json", "metrics.jsonl", "report.html")]
    return [path for path in (*files, *sorted(folder.compact.iterdir())) if path.is_file()]


def finish_trackers(accelerator: Accelerator) -> None:
    """Close all trackers."""
    for tracker in accelerator.trackers:
        tracker.finish()
    accelerator.trackers.clear()
