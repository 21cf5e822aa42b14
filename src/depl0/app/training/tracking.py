"""Experiment trackers of a run: its parameters, curves and result, and the report and the pruned model as artifacts.

TensorBoard writes to the folder ``tensorboard`` of the run; Weights & Biases and MLflow have a run in the project
``depl0`` that is named after the run's folder. This is the same for one tracker and for several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from depl0._util.io import atomic_write
from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.folder import RunFolder
from depl0.errors import InputError

PROJECT = "depl0"


def check_installed(names: Iterable[str]) -> None:
    """Raise if a tracker's package is missing, before any work is done."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"the tracker {name} is not installed.", hint=f"pip install {name}.")


@final
class Trackers:
    """The trackers of a run, on rank 0; on other ranks there are none.

    A tracker that fails during the run is reported to ``note`` and left out from then on.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._running: list[Any] = []
        self._note = note

    def start(self, names: Iterable[str], recipe: Recipe, folder: Path) -> None:
        """Start trackers, and log the parameters of the run.

        Raises:
            InputError: a tracker does not start.
        """
        for name in names:
            try:
                tracker = _make(name, folder)
                tracker.start()
                tracker.store_init_configuration(parameters(recipe))
            except Exception as error:  # a tracker's package may raise any exception
                others = json.dumps([other for other in recipe.run.trackers if other != name])
                raise InputError(
                    f"the tracker {name} does not start: {_in_one_line(error)}",
                    hint=f"check its settings and its server, or train without it: --set 'run.trackers={others}'.",
                ) from error
            self._running.append(tracker)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values at a step."""
        self._each(lambda tracker: tracker.log(values, step=step))

    def log_result(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Log the dense against the pruned network, and the pruned model with the run's files as an artifact."""
        self.log(result_scalars(summary), summary["steps"])
        if any(tracker.name in _UPLOADS for tracker in self._running):
            _write_report(folder.path)
            artifacts = [folder.path / name for name in FILES] + sorted(folder.compact.iterdir())
            self._each(lambda tracker: _UPLOADS.get(tracker.name, _stay)(tracker, folder.path, artifacts))

    def finish(self) -> None:
        """Close all trackers."""
        self._each(lambda tracker: tracker.finish())
        self._running.clear()

    def _each(self, act: Callable[[Any], object]) -> None:
        for tracker in list(self._running):
            try:
                act(tracker)
            except Exception as error:
                self._running.remove(tracker)
                self._note(f"warning: the tracker {tracker.name} failed and is left out: {_in_one_line(error)}")


def _make(name: str, folder: Path) -> Any:
    kind, title = LOGGER_TYPE_TO_CLASS[name], folder.resolve().name
    if name == "tensorboard":
        return kind("tensorboard", folder)
    return kind(PROJECT, run_name=title) if name == "mlflow" else kind(PROJECT, name=title)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def parameters(recipe: Recipe) -> dict[str, str | int | float | bool]:
    """Return the parameters of a run for trackers."""
    gates = recipe.gates
    found: dict[str, Any] = {
        "recipe": recipe.name,
        "model": recipe.model.spec,
        "data": recipe.data.spec,
        "method": gates.method,
        "budget": gates.budget,
        "budget_of": gates.of,
        "penalty_weight": recipe.penalty.weight,
        "generator": gates.generator if gates.method == "dep-l0" else None,
        "direction": gates.direction if gates.method == "dep-l0" else None,
        "seed": recipe.run.seed,
        "batch_size": recipe.data.batch_size,
        "learning_rate": recipe.weight_optimizer.lr,
        "search_epochs": recipe.search_epochs,
        "finetune_epochs": recipe.finetune_epochs,
    }
    return {name: value for name, value in found.items() if value is not None}


def result_scalars(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of both networks: ``result/dense/accuracy``, ``result/pruned/accuracy``, …."""
    found = {
        f"result/{name}/{key}": float(value)
        for name, network in (("dense", summary["dense"]), ("pruned", summary["compact"]))
        for key, value in network.items()
        if isinstance(value, (int, float))
    }
    return {**found, "result/macs_left": summary["macs_left"], "result/params_left": summary["params_left"]}


# -- artifacts -------------------------------------------------------------------------------------------------------

FILES = ("recipe.toml", "summary.json", "metrics.jsonl", "report.html")


def _write_report(folder: Path) -> None:
    from depl0.app.reports.report import page  # draws with matplotlib, which most runs do not need
    from depl0.app.reports.run import read_run

    atomic_write(folder / "report.html", page([read_run(folder)]).encode())


def _to_mlflow(tracker: Any, folder: Path, files: list[Path]) -> None:
    mlflow = import_module("mlflow")
    for path in files:
        mlflow.log_artifact(str(path), "compact" if path.parent != folder else None)


def _to_wandb(tracker: Any, folder: Path, files: list[Path]) -> None:
    artifact = import_module("wandb").Artifact(f"pruned-{folder.resolve().name}", type="model")
    for path in files:
        artifact.add_file(str(path), path.relative_to(folder).as_posix())
    tracker.tracker.log_artifact(artifact)


def _stay(tracker: Any, folder: Path, files: list[Path]) -> None:
    """TensorBoard's files are in the run folder, beside all others."""


_UPLOADS = {"mlflow": _to_mlflow, "wandb": _to_wandb}
