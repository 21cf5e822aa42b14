"""Reports of runs that are judged by something else than accuracy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from depl0.app.reports import curves, results
from depl0.app.reports.html import page
from depl0.app.reports.report import as_text
from depl0.app.reports.run import Run, read_run
from depl0.app.table import render
from depl0.errors import FormatError
from depl0.paper.literature import other_metric, table
from tests.support.other_tasks import write_regression
from tests.support.runs import write_run

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.fixture
def regression(tmp_path: Path) -> Run:
    return read_run(write_regression(tmp_path / "regression"))


def test_dense_to_compact_in_the_metric_of_the_run(regression: Run, known: Run) -> None:
    row, *_ = results.dense_to_compact(regression).rows
    assert row == {
        "quantity": "RMSE (lower is better)", "dense": "0.5 mm", "compact": "0.525 mm", "change": "+0.025 mm",
    }  # fmt: skip
    row, *_ = results.dense_to_compact(known).rows  # from before there were tasks
    assert row == {"quantity": "accuracy", "dense": "93.30 %", "compact": "93.05 %", "change": "−0.25 points"}


def test_one_metric_has_one_column_of_changes(regression: Run) -> None:
    found = json.loads(as_text([regression], "json"))[0]
    assert (found["dense_rmse"], found["rmse"], found["change"]) == (0.5, 0.525, pytest.approx(0.025))
    assert "accuracy" not in found


def test_runs_of_several_metrics_have_columns_for_each(regression: Run, known: Run) -> None:
    made = results.all_runs([known, regression])
    titles = [column.title for column in made.visible]
    assert titles[5:11] == ["dense acc.", "compact acc.", "change", "dense RMSE", "compact RMSE", "change"]
    first, second = made.shown()
    assert first[5:11] == ["93.30 %", "93.05 %", "−0.25", "–", "–", "–"]
    assert second[5:11] == ["–", "–", "–", "0.5 mm", "0.525 mm", "+0.025"]
    assert [column.key for column in made.columns].count("accuracy_change") == 1


def drawn(run: Run) -> Figure:
    figure = Figure()
    curves.draw(figure.subplots(), run, curves.PANELS[1])
    return figure


def test_the_curve_of_an_error(regression: Run, known: Run) -> None:
    axes = drawn(regression).axes[0]
    assert axes.get_title() == "RMSE (lower is better)"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:3] == ["training", "test", "dense 0.5 mm"]
    low, high = axes.get_ylim()
    assert low < 0.4 and 9 < high < 10  # too few epochs to leave one out
    assert drawn(known).axes[0].get_title() == "Accuracy"


def test_a_bad_first_epoch_does_not_press_the_curve_of_an_error_down(regression: Run) -> None:
    lines = [{**line, "epoch": place} for place, line in enumerate(regression.epochs * 3, start=1)]
    lines = [
        line if place == 0 or line["test_rmse"] < 9 else {**line, "test_rmse": 0.5} for place, line in enumerate(lines)
    ]
    many = Run(**{**vars(regression), "epochs": [{**line, "phase": "search"} for line in lines]})
    low, high = drawn(many).axes[0].get_ylim()
    assert low < 0.4 and high < 1.0


def test_the_page_says_no_accuracy(regression: Run) -> None:
    text = page([regression])
    assert "RMSE (lower is better)" in text
    assert not re.search(r"accuracy", text.replace("test_accuracy", ""), flags=re.IGNORECASE)


@pytest.mark.parametrize(
    ("task", "name", "unit"), [("regression", "rmse", ""), ("segmentation", "miou", "%"), ("my.py:Own", "rmse", "")]
)
def test_the_metric_of_an_unfinished_run(tmp_path: Path, task: str, name: str, unit: str) -> None:
    folder = write_regression(tmp_path / "run", task)
    (folder / "summary.json").unlink()
    run = read_run(folder)
    assert (run.metric.name, run.metric.unit, run.value("compact")) == (name, unit, None)
    as_text([run], "md")


def test_the_metric_of_a_run_that_has_hardly_begun(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text("")
    assert read_run(folder).metric.name == "accuracy"


def test_a_damaged_metric_is_named(tmp_path: Path) -> None:
    run = read_run(write_regression(tmp_path / "run", metric={"name": 3}))
    with pytest.raises(FormatError, match="a summary's metric must have a name"):
        as_text([run], "md")


def test_published_accuracies_are_not_compared_with_errors(regression: Run, known: Run) -> None:
    own = json.loads(render(table("cifar10", [regression]), "json"))["rows"][-1]
    assert (own["before"], own["after"], own["change"], own["flops_cut"]) == (None, None, None, 50.0)
    assert other_metric("cifar10", regression) == "RMSE"
    assert other_metric("runtime", regression) is None
    assert other_metric("cifar10", known) is None
