"""What trackers are given, and what a tracker that does not start leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from depl0.app.training import tracking
from depl0.errors import InputError
from tests.networks.tiny import run, tiny_recipe

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SHORT = {"search__epochs": 1, "finetune__epochs": 0}


def test_tensorboard_has_parameters_curves_and_the_result(tmp_path: Path) -> None:
    recipe = tiny_recipe(**SHORT, run__trackers=["tensorboard"])
    summary = run(recipe, tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert "search/loss" in tags and "result/dense/macs" in tags
    (pruned,) = events.Scalars("result/pruned/accuracy")
    assert pruned.value == pytest.approx(summary["compact"]["accuracy"]) and pruned.step == summary["steps"]
    (written,) = (tmp_path / "run" / "tensorboard").glob("*/hparams.yml")
    assert f"budget: {recipe.gates.budget}" in written.read_text() and "method: dep-l0" in written.read_text()


class Offline(GeneralTracker):
    """Stands for a service that cannot be reached."""

    name = "mlflow"
    requires_logging_directory = False

    def __init__(self, project: str, **options: str) -> None:
        raise ConnectionError(f"no answer for {project}, {options}\nand sixty more lines")


def test_a_tracker_that_does_not_start_is_one_line_and_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "mlflow", Offline)
    monkeypatch.setattr("depl0.app.runtime.accelerator._check_trackers", lambda trackers: None)
    recipe, out = tiny_recipe(**SHORT, run__trackers=["tensorboard", "mlflow"]), tmp_path / "study-7"
    with pytest.raises(InputError, match="the tracker mlflow does not start: ConnectionError: no answer") as caught:
        run(recipe, out)
    said = str(caught.value)
    assert "'run_name': 'study-7'" in said and "sixty" not in said and """run.trackers=["tensorboard"]""" in said
    run(recipe.replace(run=recipe.run.replace(trackers=())), out)  # the folder holds no run yet


def test_the_parameters_tell_runs_apart() -> None:
    found = tracking.parameters(tiny_recipe())
    assert {"recipe", "model", "data", "method", "budget", "seed"} <= found.keys()
