"""The published tables, to the letter, and the user's runs among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.reports.run import Run
from depl0.app.table import FORMATS, Column, Table, render
from depl0.paper.literature import TABLES, published, table

GOLDEN = Path(__file__).parent / "golden"
ROWS = {"cifar10": 33, "cifar100": 10, "imagenet": 32, "runtime": 9, "ablation": 6}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_published_table_is_printed_to_the_letter(name: str, kind: str, known: Run) -> None:
    expected = (GOLDEN / f"{name}.{kind}").read_text()
    assert render(table(name, [known]), kind) == expected


def test_markdown_to_the_letter(known: Run) -> None:
    assert render(table("cifar100", [known]), "md") == (GOLDEN / "cifar100.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_no_row_is_missing(name: str) -> None:
    assert len(published(name)) == ROWS[name]
    assert all(row["source"] for row in published(name))


def test_numbers_of_the_paper() -> None:
    """A few of each table, as the paper prints them."""

    def find(name: str, model: str, method: str) -> dict[str, object]:
        return next(r for r in published(name) if (r["model"], r.get("method") or r["generator"]) == (model, method))

    forward = find("cifar10", "ResNet-56", "Dep-L0 (forward)")
    assert [forward[k] for k in ("before", "after", "change")] == [93.3, 93.5, 0.2]
    assert [forward[k] for k in ("flops", "flops_cut", "params", "params_cut")] == [69.1e6, 45.5, 0.48e6, 43.5]
    assert find("cifar100", "VGG16", "Dep-L0 (backward)")["after"] == 72.5
    assert find("imagenet", "ResNet-50", "HRank")["params"] == 16.15e6
    assert find("runtime", "ResNet-50", "L0-HC")["epochs_to_convergence"] == "fail to prune"
    assert find("ablation", "VGG16", "LSTM")["after"] is None
    later = find("cifar10", "ResNet-56", "DepGraph (group SL)")
    assert (later["flops_cut"], later["change"]) == (53.1, 0.24)  # published as 2.13x


def test_changes_agree_with_accuracies_or_say_so() -> None:
    for name in ("cifar10", "cifar100", "imagenet"):
        for row in published(name):
            if row["before"] is not None and abs(row["after"] - row["before"] - row["change"]) > 0.051:
                assert "the accuracies give" in row["note"]


def test_own_runs_are_marked_rows(known: Run) -> None:
    found = json.loads(render(table("cifar10", [known]), "json"))["rows"]
    assert [row["yours"] for row in found] == [False] * ROWS["cifar10"] + [True]
    own = found[-1]
    assert (own["model"], own["method"], own["source"]) == ("ResNet-56", "dep-l0 (forward)", "known, seed 7")
    assert (own["before"], own["after"], own["flops_cut"]) == (93.3, 93.05, 50.0)


def test_run_time_of_an_own_run(known: Run) -> None:
    own = json.loads(render(table("runtime", [known]), "json"))["rows"][-1]
    assert (own["epochs"], own["epochs_to_convergence"], own["time_to_solution"]) == (6, 2.5, "124 min")
    assert own["seconds_per_epoch"] == 42.0  # of epochs 1 to 3, in the third of which the search converged


@pytest.mark.parametrize("kind", FORMATS)
def test_no_sign_of_a_name_breaks_a_format(kind: str) -> None:
    name = 'a|b & <i> "c", 100 % of $x_1$ #{\\}'
    text = render(Table("t", (Column("a", "A"), Column("b", "B")), [{"a": name, "b": 1}]), kind)
    if kind == "json":
        assert json.loads(text)["rows"] == [{"a": name, "b": 1}]
    elif kind == "md":
        assert text.splitlines()[-1].replace("\\|", "").count("|") == 3
        assert "<i>" not in text
    else:
        assert name in text
