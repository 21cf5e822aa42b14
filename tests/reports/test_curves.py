"""The training curves and the headline: what is shown, where, and on which axis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depl0.app.reports import figures
from depl0.app.reports.run import Run, read_run
from depl0.app.reports.tables import headline
from tests.support.runs import write_run

pytestmark = pytest.mark.usefixtures("remembered_plans")


def drawn(run: Run, name: str) -> Axes:
    axes = Figure().subplots()
    figures.draw(axes, run, getattr(figures, name))
    return axes


def changed(run: Run, **how: Any) -> Run:
    """The run with other values in its epochs: a list for the epochs of the search, one after the other."""
    epochs = [dict(epoch) for epoch in run.epochs]
    for key, values in how.items():
        for epoch, value in zip(epochs, values, strict=False):
            epoch[key] = value
    return replace(run, epochs=epochs)


def epochs_drawn(run: Run) -> list[float]:
    return [float(x) for x in drawn(run, "threshold").lines[0].get_xdata()]


def test_the_panel_of_the_budget_begins_after_the_warm_up(known: Run) -> None:
    assert epochs_drawn(known) == [1, 2, 3, 4]
    warm = {**known.recipe, "search": {**known.recipe["search"], "warmup": 0.5}}
    assert epochs_drawn(replace(known, recipe=warm)) == [3, 4]


def test_moments_are_marked_in_one_panel_alone(known: Run) -> None:
    moments = {"converged", "frozen", "channels cut"}
    marked = [panel.name for panel in figures.drawings(known) if moments & labels(drawn(known, panel.name))]
    assert marked == ["cost"]
    assert moments <= labels(drawn(known, "cost"))


def labels(axes: Axes) -> set[str]:
    return set(axes.get_legend_handles_labels()[1])


def test_panels_of_the_search_end_with_it(known: Run) -> None:
    assert drawn(known, "cost").get_xlim() == (1, 4)
    assert drawn(known, "loss").get_xlim() == (1, 6)  # two epochs of fine-tuning


def test_a_late_dip_is_inside_the_axis(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", epochs=16))
    low, high = drawn(changed(run, test_accuracy=[90.0] * 12 + [60.0]), "metric").get_ylim()
    assert low < 60 and high > 93.3


def test_a_first_epoch_far_below_is_left_out(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", epochs=16))
    axes = drawn(changed(run, test_accuracy=[10.0, *[90.0] * 15], train_accuracy=[9.0, *[90.0] * 15]), "metric")
    assert axes.get_ylim()[0] > 60


def test_headline(known: Run) -> None:
    assert headline(known) == [
        ("Accuracy", "93.05 %", "dense 93.30 %, −0.25 points"),
        ("MACs", "62.7M", "dense 125M, 50.0 % left"),
        ("Parameters", "427k", "dense 853k, 50.0 % left"),
        ("Latency, batch 1", "4 ms", "dense 8 ms, 2.00x as fast (1.90 to 2.10)"),
    ]


def test_headline_of_an_unfinished_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    assert [number[1:] for number in headline(read_run(folder))] == [
        ("93.00 %", "so far"), ("50.0 %", "left so far"), ("50.0 %", "left so far"), ("–", "not known yet"),
    ]  # fmt: skip
