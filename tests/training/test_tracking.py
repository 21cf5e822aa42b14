"""What trackers are given, and what a tracker that does not start, or fails later, leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from depl0.app.training import tracking
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SHORT = {"search__epochs": 1, "finetune__epochs": 0}
ARTIFACTS = {"recipe.toml", "summary.json", "metrics.jsonl", "report.html"}


@pytest.fixture
def _logging_as_it_was() -> Iterator[None]:
    """MLflow configures the root logger when it is imported."""
    handlers = list(logging.root.handlers)
    yield
    logging.root.handlers[:] = handlers


def test_tensorboard_has_parameters_curves_and_the_result(tmp_path: Path) -> None:
    recipe = tiny_recipe(**SHORT, run__trackers=["tensorboard"])
    summary = run(recipe, tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert "search/loss" in tags and "result/dense/macs" in tags
    (pruned,) = events.Scalars("result/pruned/accuracy")
    assert pruned.value == pytest.approx(summary["compact"]["accuracy"]) and pruned.step == summary["steps"]
    (written,) = (tmp_path / "run" / "tensorboard").glob("*/hparams.yml")
    text = written.read_text()
    assert f"gates.budget: {recipe.gates.budget}" in text and "gates.method: dep-l0" in text


@pytest.mark.parametrize("trackers", [["mlflow"], ["tensorboard", "mlflow"]])
@pytest.mark.usefixtures("_logging_as_it_was")
def test_mlflow_has_the_same_and_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trackers: list[str]
) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed (pip install mlflow)")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run(tiny_recipe(**SHORT, run__trackers=trackers), tmp_path / "study-7")
    (folder,) = (path.parent for path in (tmp_path / "mlruns").glob("*/*/artifacts"))
    assert (folder / "tags" / "mlflow.runName").read_text() == "study-7"
    assert (folder / "params" / "gates.budget").read_text() == "0.5"
    assert (folder / "metrics/result/pruned/accuracy").is_file() and (folder / "metrics/search/loss").is_file()
    found = {str(path.relative_to(folder / "artifacts")) for path in (folder / "artifacts").rglob("*.*")}
    assert found == ARTIFACTS | {"compact/compact.json", "compact/compact.safetensors"}


def test_wandb_has_the_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed (pip install wandb)")
    logged: list[Any] = []
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    log_artifact = wandb.sdk.wandb_run.Run.log_artifact

    def noting(run: Any, artifact: Any) -> Any:
        logged.append(artifact)
        return log_artifact(run, artifact)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log_artifact", noting)
    run(tiny_recipe(**SHORT, run__trackers=["wandb"]), tmp_path / "study-7")
    (artifact,) = logged
    assert artifact.name.startswith("pruned-study-7")
    assert set(artifact.manifest.entries) == ARTIFACTS | {"compact/compact.json", "compact/compact.safetensors"}


class Offline(GeneralTracker):
    """Stands for a service that cannot be reached."""

    name = "mlflow"
    requires_logging_directory = False

    def __init__(self, project: str, **options: str) -> None:
        raise ConnectionError(f"no answer for {project}, {options}\nand sixty more lines")


class Failing(Offline):
    """Stands for a service that is lost during the run."""

    def __init__(self, project: str, **options: str) -> None:
        self.logged = 0

    def start(self) -> None:
        pass

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        raise ConnectionError("the server is gone\nand sixty more lines")


@pytest.fixture
def mlflow_is(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tracking, "find_spec", lambda name: name)
    return lambda kind: monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "mlflow", kind)


def test_a_tracker_that_does_not_start_is_one_line_and_no_run(tmp_path: Path, mlflow_is: Any) -> None:
    mlflow_is(Offline)
    recipe, out = tiny_recipe(**SHORT, run__trackers=["tensorboard", "mlflow"]), tmp_path / "study-7"
    with pytest.raises(InputError, match="the tracker mlflow does not start: ConnectionError: no answer") as caught:
        run(recipe, out)
    said = str(caught.value)
    assert "'run_name': 'study-7'" in said and "sixty" not in said and """run.trackers=["tensorboard"]""" in said
    run(recipe.replace(run=recipe.run.replace(trackers=())), out)  # the folder holds no run yet


def test_a_tracker_that_fails_later_does_not_end_the_run(tmp_path: Path, mlflow_is: Any) -> None:
    mlflow_is(Failing)
    reporter = Noisy()
    run(tiny_recipe(**SHORT, run__trackers=["mlflow"]), tmp_path / "run", reporter)
    log = (tmp_path / "run" / "log.txt").read_text()
    warning = "warning: the tracker mlflow failed and is left out: ConnectionError: the server is gone\n"
    assert log.count(warning) == 1 and "sixty" not in log
    assert any(warning.strip() in note for note in reporter.notes)


def test_a_tracker_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="tracker wandb is not installed") as caught:
        run(tiny_recipe(**SHORT, run__trackers=["wandb"]), tmp_path / "run")
    assert "pip install wandb" in str(caught.value)
    assert not (tmp_path / "run").exists()
