"""Reports of runs that are judged by something else than accuracy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from depl0.app.reports import figures, tables
from depl0.app.reports.report import page
from depl0.app.reports.run import Run, read_run
from tests.support.other_tasks import write_regression

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.fixture
def regression(tmp_path: Path) -> Run:
    return read_run(write_regression(tmp_path / "regression"))


def test_dense_to_compact_in_the_metric_of_the_run(regression: Run, known: Run) -> None:
    row, *_ = tables.dense_to_compact(regression).rows
    assert row == {
        "quantity": "RMSE (lower is better)", "dense": "0.5 mm", "compact": "0.525 mm", "change": "+0.025 mm",
    }  # fmt: skip
    row, *_ = tables.dense_to_compact(known).rows  # from before there were tasks
    assert row == {"quantity": "accuracy", "dense": "93.30 %", "compact": "93.05 %", "change": "−0.25 points"}


def test_runs_of_several_metrics_have_columns_for_each(regression: Run, known: Run) -> None:
    made = tables.all_runs([known, regression])
    titles = [column.title for column in made.visible]
    assert titles[5:11] == ["dense acc.", "compact acc.", "change", "dense RMSE", "compact RMSE", "change"]
    first, second = made.shown()
    assert first[5:11] == ["93.30 %", "93.05 %", "−0.25", "–", "–", "–"]
    assert second[5:11] == ["–", "–", "–", "0.5 mm", "0.525 mm", "+0.025"]
    assert [column.key for column in made.columns].count("accuracy_change") == 1


def drawn(run: Run) -> Figure:
    figure = Figure()
    figures.draw(figure.subplots(), run, figures.metric)
    return figure


def test_the_curve_of_an_error(regression: Run, known: Run) -> None:
    axes = drawn(regression).axes[0]
    assert axes.get_title() == "RMSE (lower is better)"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:3] == ["training", "test", "dense 0.5 mm"]
    low, high = axes.get_ylim()
    assert low < 0.4 and 9 < high < 10  # too few epochs to leave one out
    assert drawn(known).axes[0].get_title() == "Accuracy"


def test_the_page_says_no_accuracy(regression: Run) -> None:
    text = page([regression]).replace(regression.path.as_posix(), "")
    assert "RMSE (lower is better)" in text
    assert not re.search(r"accuracy", text.replace("test_accuracy", ""), flags=re.IGNORECASE)
