"""A run with images held out: epochs and choices look at these, test images are looked at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from depl0.app.cli.result import result_table
from depl0.app.data import Batches, Data
from depl0.app.reports.run import read_run
from depl0.app.reports.tables import all_runs, dense_to_compact
from depl0.app.training import prune as prune_module
from depl0.errors import TrainingError
from tests.networks.tiny import Noisy, interrupt, run, tiny_recipe
from tests.support.resume import what_matters

pytestmark = pytest.mark.usefixtures("remembered_plans")

HELD_OUT = {"data__validation": 0.25, "search__dense_baseline": True, "search__epochs": 2, "finetune__epochs": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("held-out") / "run"
    run(tiny_recipe(**HELD_OUT), out)
    return out


def test_every_epoch_is_judged_on_validation_images(whole: Path) -> None:
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "event" not in line]
    assert len(epochs) == 6
    assert all("validation_accuracy" in line and "test_accuracy" not in line for line in epochs)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["freezing"]["split"] == "validation"
    assert summary["validation"]["images"] == 12
    assert summary["validation"]["compact"]["accuracy"] == epochs[-1]["validation_accuracy"]
    twelfths, twentyfourths = (
        [summary["validation"][network]["accuracy"] * 12 / 100 for network in ("dense", "compact")],
        [summary[network]["accuracy"] * 24 / 100 for network in ("dense", "compact")],
    )
    assert all(abs(number - round(number)) < 1e-6 for number in twelfths + twentyfourths)


def test_test_images_are_looked_at_once_for_each_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    original = prune_module.open_data_for

    def counted(*arguments: Any) -> Data:
        data = original(*arguments)
        epoch = data.test.epoch

        def look(number: int, first_step: int = 0) -> Any:
            looks.append(number)
            return epoch(number, first_step)

        test: Batches = data.test
        monkeypatch.setattr(test, "epoch", look)
        return data

    monkeypatch.setattr(prune_module, "open_data_for", counted)
    run(tiny_recipe(**HELD_OUT), tmp_path / "run")
    assert len(looks) == 3  # an image to plan with, the dense network, the compact one


def test_reports_say_which_is_which(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    printed = result_table(summary, whole)
    assert re.search(r"^validation accuracy .*\ntest accuracy ", printed, re.MULTILINE)
    found = read_run(whole)
    assert [row["quantity"] for row in dense_to_compact(found).rows][:2] == ["validation accuracy", "test accuracy"]
    assert all_runs([found]).rows[0]["validation_accuracy"] == summary["validation"]["compact"]["accuracy"]


@pytest.mark.parametrize("step", [8])
def test_a_stopped_run_goes_on_alike(step: int, whole: Path, tmp_path: Path) -> None:
    recipe, out = tiny_recipe(**HELD_OUT), tmp_path / "run"
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, out, Noisy(at_step=step, act=interrupt))
    run(recipe, out, resume=True)
    assert what_matters(out) == what_matters(whole)
