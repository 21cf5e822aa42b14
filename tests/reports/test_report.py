"""The report: what it writes, in which formats, and that no name in it becomes markup."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from depl0.app.cli.app import main
from depl0.app.reports.report import as_text, page
from depl0.app.reports.run import read_run
from tests.support.runs import SCRIPT, write_run

pytestmark = pytest.mark.usefixtures("remembered_plans")


def test_page_and_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / name, layers=2, epochs=3) for name in ("a", "b")]
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.html")
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    panels = ("structure", "loss", "metric", "cost", "threshold", "undecided")
    names = {f"{panel}-{run}" for panel in panels for run in ("a", "b")}
    assert figures == {f"{name}.{ending}" for name in names for ending in ("png", "svg", "pdf")}
    for name in names:
        with Image.open(tmp_path / "out" / "figures" / f"{name}.png") as picture:
            assert min(picture.size) > 200
            colours = picture.convert("RGB").getcolors(picture.width * picture.height) or []
            assert len(colours) > 20  # something is drawn
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("<svg ") == 2 * 6
    for word in ("src=", "@import", '<link rel="stylesheet"', "url(http"):
        assert word not in text


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", prefix=SCRIPT, name=SCRIPT)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "commit": SCRIPT}))
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"model": SCRIPT, "data": SCRIPT}
    summary["layers"][-1]["unprunable"] = {SCRIPT: 10}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page([read_run(folder, label=SCRIPT)])
    assert SCRIPT not in text
    assert text.count("alert(1)") > 20
    assert text.count("<script") == 2  # the page's own, and the data of the heat map


def test_older_summaries_call_unprunable_channels_frozen(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    wanted = as_text([read_run(folder, label="run")], "md")
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"unprunable"', '"frozen"'))
    assert as_text([read_run(folder, label="run")], "md") == wanted and "reaches the network's output" in wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("report nowhere", "nowhere is not the folder of a run"),
        ("report study", "comparison.json is damaged: 'members' is missing"),
        ("report . --format pdf", "--format must be one of html, md, csv, latex, got 'pdf' instead"),
    ],
    ids=["no run", "damaged study", "no format"],
)
def test_wrong_words_are_refused(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "comparison.json").write_text('{"metric": null, "methods": []}')
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_tables_are_written_for_papers_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a_run", layers=2, epochs=3)
    assert main(["report", str(folder)]) == 0
    row = next(csv.DictReader(io.StringIO((folder / "tables" / "runs.csv").read_text())))
    summary = json.loads((folder / "summary.json").read_text())
    assert float(row["accuracy"]) == summary["compact"]["accuracy"] and row["run"] == "a_run"
    text = (folder / "tables" / "runs.tex").read_text()
    assert r"\begin{tabular}" in text and r"a\_run & " in text and r"\bottomrule" in text
    capsys.readouterr()
    assert main(["report", str(folder), "--format", "latex"]) == 0
    assert capsys.readouterr().out == text
