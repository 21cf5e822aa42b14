"""The report of a run: what it reads, what it shows and writes, and that no name in it becomes markup."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from depl0.app.cli.app import main
from depl0.app.reports import figures, tables
from depl0.app.reports.report import page
from depl0.app.reports.run import Run, read_run, read_runs
from depl0.errors import InputError
from tests.support.runs import SCRIPT, write_run

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.fixture
def known(tmp_path: Path) -> Run:
    """A finished run in known numbers."""
    return read_run(write_run(tmp_path / "known"))


def drawn(run: Run, name: str) -> Axes:
    axes = Figure().subplots()
    figures.draw(axes, run, getattr(figures, name))
    return axes


# -- what is written ---------------------------------------------------------------------------------------------------


def test_a_page_with_figures_and_tables_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a_run", layers=2, epochs=3)
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.html")
    names = ("structure", "widths", "loss", "metric", "cost")
    written = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert written == {f"{name}.{ending}" for name in names for ending in ("png", "svg", "pdf")}
    for name in names:
        with Image.open(tmp_path / "out" / "figures" / f"{name}.png") as picture:
            colours = picture.convert("RGB").getcolors(picture.width * picture.height) or []
            assert len(colours) > 20  # something is drawn
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("<svg ") == 5
    for word in ("src=", "@import", '<link rel="stylesheet"', "url(http"):
        assert word not in text
    row = next(csv.DictReader(io.StringIO((tmp_path / "out" / "tables" / "runs.csv").read_text())))
    summary = json.loads((folder / "summary.json").read_text())
    assert float(row["accuracy"]) == summary["compact"]["accuracy"] and row["run"] == "a_run"


def test_several_runs_are_a_table_with_links_to_their_pages(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / word / "run") for word in ("a", "b")]
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    for link in ("../a/run/report.html", "../b/run/report.html"):
        assert f'href="{link}"' in text
        assert "<h1>Pruning report: " in (tmp_path / "out" / link).read_text()
    with pytest.raises(InputError, match="given twice"):
        read_runs([runs[0], runs[0]])


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", prefix=SCRIPT)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "commit": SCRIPT}))
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"model": SCRIPT, "data": SCRIPT}
    summary["layers"][-1]["unprunable"] = {SCRIPT: 10}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page([read_run(folder, label=SCRIPT)])
    assert SCRIPT not in text
    assert text.count("alert(1)") > 20
    assert text.count("<script") == 1  # the page's own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report nowhere", "nowhere is not the folder of a run"),
        ("report study", "comparison.json cannot be used: KeyError: 'members'"),
    ],
)
def test_wrong_words_are_refused(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "comparison.json").write_text('{"metric": null, "methods": []}')
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


# -- numbers and curves ------------------------------------------------------------------------------------------------


def test_headline(known: Run) -> None:
    assert tables.headline(known) == [
        ("Accuracy", "93.05 %", "dense 93.30 %, −0.25 points"),
        ("MACs", "62.7M", "dense 125M, 50.0 % left"),
        ("Parameters", "427k", "dense 853k, 50.0 % left"),
        ("Latency, batch 1", "4 ms", "dense 8 ms, 2.00x as fast (1.90 to 2.10)"),
    ]


def test_a_speedup_that_was_not_measurable_is_not_claimed(known: Run) -> None:
    uncertain = {"ratio": 1.25, "low": 0.6, "high": 1.5}
    run = replace(known, summary={**known.summary, "speedup": {"1": uncertain, "32": uncertain}})
    changes = {row["quantity"]: row["change"] for row in tables.dense_to_compact(run).rows}
    assert changes["latency, batch 1"] == "no measurable difference (0.60 to 1.50)"
    assert tables.headline(run)[3][2] == "dense 8 ms, no measurable difference (0.60 to 1.50)"


def test_the_search_is_marked_in_the_panel_of_the_budget(known: Run) -> None:
    moments = {"frozen", "channels cut"}
    cost = drawn(known, "cost")
    assert moments <= set(cost.get_legend_handles_labels()[1])
    assert cost.get_xlim() == (1, 4)
    assert drawn(known, "loss").get_xlim() == (1, 6)  # two epochs of fine-tuning


def test_the_open_gates_of_every_layer_are_drawn_by_epoch(known: Run) -> None:
    drawing = figures.widths(known)
    assert drawing is not None
    (image,) = drawing.figure().axes[0].images
    expected = [[(8 - gone * epoch // 4) / 8 for epoch in (1, 2, 3, 4)] for gone in (1, 2, 3)]
    np.testing.assert_allclose(np.asarray(image.get_array()), expected)
    still = [{**line, "open_gates": {"layer0.conv": 8}} for line in known.epochs]
    only = {**known.summary, "groups": {"layer0.conv": {"gates": 8, "open": 7}}}
    assert (
        figures.widths(replace(known, epochs=still, summary=only)) is None
    )  # scored channels have no gates that close


def test_the_axis_leaves_out_a_bad_start_but_no_late_dip(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", epochs=16))

    def lowest(accuracies: list[float]) -> float:
        epochs = [
            {**epoch, "train_accuracy": y, "test_accuracy": y} for epoch, y in zip(run.epochs, accuracies, strict=False)
        ]
        return float(drawn(replace(run, epochs=epochs), "metric").get_ylim()[0])

    assert lowest([10.0, *[90.0] * 15]) > 60
    assert lowest([*[90.0] * 12, 60.0, *[90.0] * 3]) < 60


def test_a_metric_of_its_own(known: Run) -> None:
    summary = {**known.summary, "metric": {"name": "rmse", "unit": "mm", "higher_is_better": False}}
    for network, error in (("dense", 0.5), ("compact", 0.525)):
        summary[network] = {**summary[network], "rmse": error}
        del summary[network]["accuracy"]
    epochs = [{key.replace("accuracy", "rmse"): value for key, value in epoch.items()} for epoch in known.epochs]
    regression = replace(known, label="rmse", summary=summary, epochs=epochs)
    row, *_ = tables.dense_to_compact(regression).rows
    assert row == {
        "quantity": "RMSE (lower is better)", "dense": "0.5 mm", "compact": "0.525 mm", "change": "+0.025 mm",
    }  # fmt: skip
    made = tables.all_runs([known, regression])
    titles = [column.title for column in made.columns]
    assert titles[5:11] == ["dense acc.", "compact acc.", "change", "dense RMSE", "compact RMSE", "change"]
    first, second = made.shown()
    assert first[5:11] == ["93.30 %", "93.05 %", "−0.25", "–", "–", "–"]
    assert second[5:11] == ["–", "–", "–", "0.5 mm", "0.525 mm", "+0.025"]
    assert drawn(regression, "metric").get_title() == "RMSE (lower is better)"
    assert "accuracy" not in page([regression]).lower().replace(regression.path.as_posix().lower(), "")


# -- what is read ------------------------------------------------------------------------------------------------------


def test_a_run_that_has_not_finished_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    with pytest.raises(InputError, match=r"has not finished\.\nhint: continue it with --resume; tensorboard"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.toml", "[model", "recipe.toml is not valid TOML"),
        ("summary.json", "{", "is damaged"),
        ("summary.json", "[]", "is damaged: it holds a list"),
        ("metrics.jsonl", '{"event": "x"}\n{\n{}\n', "damaged in line 2"),
    ],
)
def test_a_damaged_run_is_refused_by_the_name_of_the_file(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_run(folder)
