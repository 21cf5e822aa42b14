"""What a report reads of a run's folder: whole ones, unfinished ones and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from depl0.app.reports import tables
from depl0.app.reports.report import page
from depl0.app.reports.run import Run, read_gates, read_run, read_runs
from depl0.errors import InputError
from tests.support.runs import write_run

pytestmark = pytest.mark.usefixtures("remembered_plans")


def test_the_gates_of_a_run(known: Run) -> None:
    assert known.gates is not None
    assert known.gates.epochs == [0, 1, 2, 3, 4]
    assert sum(map(len, known.gates.groups.values())) == 24
    np.testing.assert_allclose(known.gates.groups["layer0.conv"][-1], [1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_allclose(known.gates.groups["layer0.conv"][0], 1)


def test_gates_that_were_cut_out_are_closed() -> None:
    lines = [
        {"epoch": 0, "open": {"a": [900, 800, 700], "b": [500, 500]}},
        {"epoch": 1, "open": {"a": [100, 900, 50], "b": [500, 500]}},
        {"epoch": 2, "open": {"a": [910, 60], "b": [400]}, "kept": {"a": [1, 2], "b": [0]}},
    ]
    history = read_gates(lines)
    assert history is not None
    np.testing.assert_allclose(history.groups["a"], [[0.9, 0.1, 0], [0.8, 0.9, 0.91], [0.7, 0.05, 0.06]])
    np.testing.assert_allclose(history.groups["b"], [[0.5, 0.5, 0.4], [0.5, 0.5, 0]])


@pytest.mark.parametrize(
    ("low", "change"),
    [(1.1, "1.25x as fast (1.10 to 1.50)"), (0.6, "no measurable difference (0.60 to 1.50)")],
    ids=["certain", "uncertain"],
)
def test_a_speedup_is_one_only_where_it_was_measurable(tmp_path: Path, low: float, change: str) -> None:
    folder = write_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    found = {"ratio": 1.25, "low": low, "high": 1.5}
    (folder / "summary.json").write_text(json.dumps({**summary, "speedup": {"1": found, "32": found}}))
    run = read_run(folder)
    changes = {row["quantity"]: row["change"] for row in tables.dense_to_compact(run).rows}
    assert changes["latency, batch 1"] == changes["latency, batch 32"] == change
    assert tables.headline(run)[3][2] == f"dense 8 ms, {change}"


def test_an_unfinished_run_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "finetune", "ep')  # killed in the middle of a line
    run = read_run(folder)
    assert not run.is_finished
    assert len(run.epochs) == 6
    assert "so far" in page([run])


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / word / "run") for word in ("a", "b")]
    assert [run.label for run in read_runs(paths)] == ["a/run", "b/run"]
    with pytest.raises(InputError, match="given twice"):
        read_runs([paths[0], paths[0]])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.toml", None, "holds no run"),
        ("recipe.toml", "[model", "recipe.toml is damaged"),
        ("summary.json", "{", "is damaged"),
        ("summary.json", "[]", "valid dictionary"),
        ("metrics.jsonl", '{"event": "x"}\n{\n{}\n', "damaged in line 2"),
        ("metrics.jsonl", '{"phase": "search", "epoch": "x"}\n', "line 1: epoch: Input should be a valid number"),
        ("summary.json", '{"layers": [{"layer": "a"}]}', r"layers\.0\.channels: Field required"),
        (
            "gates.jsonl",
            '{"epoch": 0, "open": {"a": [1001]}}\n',
            r"line 1: open\.a\.0: Input should be less than or equal to 1000",
        ),
        ("environment.json", '{"machine": []}', "machine: Input should be a valid dictionary"),
        ("gates.jsonl", "1\n{}\n", "damaged in line 1"),
    ],
)
def test_a_damaged_run_is_refused_by_the_name_of_the_file(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    folder = write_run(tmp_path / "run")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_run(folder)
