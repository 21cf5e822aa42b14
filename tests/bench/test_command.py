"""``depl0 paper step`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.bench.step import VARIANTS
from depl0.app.cli.app import main

pytestmark = pytest.mark.runs


def test_the_table_of_a_small_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "step", "--model", "lenet5", "--batch", "2", "--repeats", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert (tmp_path / "step.md").read_text() == table
    result = json.loads((tmp_path / "step.json").read_text())
    rows = result["networks"]["lenet5"]
    assert [row["variant"] for row in rows] == [variant.name for variant in VARIANTS]
    assert (rows[0]["ratio"], rows[0]["extra_operators"], rows[0]["saved_ratio"]) == (1, 0, 1)
    for row in rows[1:]:
        assert row["ratio"] > 0
        assert row["extra_operators"] > 0
        assert row["saved_ratio"] > 1
        assert f"| {row['variant']} " in table
    assert "torch" in result["environment"]["packages"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet57"], "resnet57"),
        (["--batch", "0"], "--batch must be an integer of at least 1, got 0"),
        (["--repeats", "-1"], "--repeats must be"),
    ],
    ids=["network", "batch", "repeats"],
)
def test_wrong_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "step", *words]) == 2
    assert message in capsys.readouterr().err
