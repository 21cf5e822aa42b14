"""Experiment trackers of a run: its recipe, curves and result, and the report and the pruned model as artifacts.

TensorBoard writes to the folder ``tensorboard`` of the run; Weights & Biases and MLflow have a run in the project
``depl0`` that is named after the run's folder.
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
from depl0.app.runs.folder import RunFolder, fields_of
from depl0.errors import InputError
from depl0.host.network import first_line

PROJECT = "depl0"
FILES = ("recipe.toml", "summary.json", "metrics.jsonl", "report.html")
"""files of a run that are uploaded, besides the pruned model"""


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

    def start(self, recipe: Recipe, folder: Path) -> None:
        """Start the trackers of a recipe, and log its fields.

        Raises:
            InputError: a tracker does not start.
        """
        for name in sorted(recipe.run.trackers, key="tensorboard".__eq__):  # last, because it writes to the folder
            try:
                tracker = _make(name, folder)
                tracker.start()
                tracker.store_init_configuration(parameters(recipe))
            except Exception as error:  # a tracker's package may raise any exception
                others = json.dumps([other for other in recipe.run.trackers if other != name])
                raise InputError(
                    f"the tracker {name} does not start: {type(error).__name__}: {first_line(error)}",
                    hint=f"check its settings and its server, or train without it: --set 'run.trackers={others}'.",
                ) from error
            self._running.append(tracker)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values at a step."""
        self._each(lambda tracker: tracker.log(values, step=step))

    def log_result(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        """Log the dense against the pruned network, and the pruned model with the run's files as an artifact."""
        self.log(result_scalars(summary), summary["steps"])
        if any(tracker.name != "tensorboard" for tracker in self._running):
            _write_report(folder.path)
            files = [folder.path / name for name in FILES] + sorted(folder.compact.iterdir())
            self._each(lambda tracker: _upload(tracker, folder.path, files))

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
                reason = f"{type(error).__name__}: {first_line(error)}"
                self._note(f"warning: the tracker {tracker.name} failed and is left out: {reason}")


def _make(name: str, folder: Path) -> Any:
    kind, title = LOGGER_TYPE_TO_CLASS[name], folder.resolve().name
    if name == "tensorboard":
        return kind("tensorboard", folder)
    return kind(PROJECT, run_name=title) if name == "mlflow" else kind(PROJECT, name=title)


def parameters(recipe: Recipe) -> dict[str, str | int | float]:
    """Return the fields of a recipe for trackers, which accept plain values alone."""
    fields = fields_of(recipe).items()
    return {name: value if isinstance(value, (str, int, float)) else str(value) for name, value in fields}


def result_scalars(summary: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of both networks: ``result/dense/accuracy``, ``result/pruned/accuracy``, …."""
    found = {
        f"result/{name}/{key}": float(value)
        for name, network in (("dense", summary["dense"]), ("pruned", summary["compact"]))
        for key, value in network.items()
        if isinstance(value, (int, float))
    }
    return {**found, "result/macs_left": summary["macs_left"], "result/params_left": summary["params_left"]}


def _write_report(folder: Path) -> None:
    from depl0.app.reports.report import page  # draws with matplotlib, which most runs do not need
    from depl0.app.reports.run import read_run

    atomic_write(folder / "report.html", page([read_run(folder)]).encode())


def _upload(tracker: Any, folder: Path, files: list[Path]) -> None:
    """Upload files as an artifact; those of TensorBoard are in the run folder, beside all others."""
    if tracker.name == "mlflow":
        for path in files:
            import_module("mlflow").log_artifact(str(path), "compact" if path.parent != folder else None)
    elif tracker.name == "wandb":
        artifact = import_module("wandb").Artifact(f"pruned-{folder.resolve().name}", type="model")
        for path in files:
            artifact.add_file(str(path), path.relative_to(folder).as_posix())
        tracker.tracker.log_artifact(artifact)
