"""Studies of a task whose metric is better when it is lower."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies import compare, tables
from depl0.app.studies.study import Outcome
from depl0.app.table import Table, markdown_page
from tests.support.summaries import a_summary

RECIPE = with_overrides(catalog.get("digits"), {"task.spec": "regression"})
RMSE = {"name": "rmse", "unit": "", "higher_is_better": False}
BUDGETS = (0.7, 0.5, 0.4, 0.3)


def page(table: Table) -> str:
    """A table as Markdown, its columns not aligned."""
    return re.sub(" +", " ", markdown_page(table))


def an_error(value: float, left: float, dense: float | None = 0.1) -> dict[str, Any]:
    summary = a_summary(0.0, left)
    for network, error in (("compact", value), ("dense", dense)):
        del summary[network]["accuracy"]
        summary[network]["rmse"] = error
    return {**summary, "metric": RMSE}


@pytest.fixture
def swept(tmp_path: Path) -> dict[str, Any]:
    """Of four budgets, 0.4 is off by more than 0.3, which costs less."""
    comparison = compare.Comparison(RECIPE, (), 1, BUDGETS)
    errors = [an_error(e, b) for e, b in zip((0.125, 0.15, 0.25, 0.2), BUDGETS, strict=True)]
    outcomes = [Outcome(n, "finished", summary=s) for n, s in zip(comparison.members(), errors, strict=True)]
    return comparison.summarise(outcomes, tmp_path)


def test_low_errors_are_on_the_frontier(swept: dict[str, Any]) -> None:
    assert [row["on_frontier"] for row in swept["methods"]] == [True, True, False, True]
    assert (swept["metric"], swept["dense_rmse"]) == (RMSE, 0.1)
    assert swept["members"][0]["change"] == pytest.approx(0.025)


def test_the_table_of_several_budgets(swept: dict[str, Any]) -> None:
    lines = page(tables.tabulate(swept)).splitlines()
    assert lines[2].startswith("| method | budget | n | RMSE | change |")
    assert lines[4].startswith("| dense | | | 0.1 | |")
    assert lines[5].startswith("| dep-l0 | 0.7 | 1 | 0.125 | +0.025 | 70.0 % |")
    assert "RMSE: lower is better." in lines
