"""Budgets are read with clear errors; table, JSON and picture from fixed summaries."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from depl0.app.recipes import catalog
from depl0.app.studies import frontier
from depl0.app.studies.frontier import draw_frontier
from depl0.app.studies.study import Failure, Outcome, Study
from depl0.app.studies.sweep import read_budgets, summarise, sweep_members, tabulate
from depl0.app.table import markdown_page
from depl0.errors import InputError
from tests.support.summaries import a_summary, finish_run

BUDGETS = (0.9, 0.5, 0.3, 0.1, 0.0001)
SUMMARIES = {
    "budget-0.9": a_summary(98.0, 0.899),
    "budget-0.5": a_summary(98.5, 0.5),
    "budget-0.3": a_summary(95.0, 0.298),
}
FAILURES = {"budget-0.0001": Failure("InputError", "it cannot be reached.")}
RECIPE = catalog.get("digits")


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    outcomes = []
    for name in sweep_members(RECIPE, BUDGETS):
        if name in SUMMARIES:
            finish_run(tmp_path / name, SUMMARIES[name])
            outcomes.append(Outcome(name, "finished", summary=SUMMARIES[name]))
        elif name in FAILURES:
            outcomes.append(Outcome(name, "failed", failure=FAILURES[name]))
        else:
            outcomes.append(Outcome(name, "not started"))
    return summarise(RECIPE, BUDGETS, outcomes, tmp_path)


MARKDOWN = """\
# digits: accuracy against cost

| budget | accuracy | change | MACs left | parameters left | time | frontier | status                        |
|:-------|---------:|-------:|----------:|----------------:|-----:|:---------|:------------------------------|
| dense  |  99.00 % |        |    100.0% |          100.0% |      |          |                               |
| 0.9    |  98.00 % |  -1.00 |     89.9% |           45.0% | 61 s | no       | finished                      |
| 0.5    |  98.50 % |  -0.50 |     50.0% |           25.0% | 61 s | yes      | finished                      |
| 0.3    |  95.00 % |  -4.00 |     29.8% |           14.9% | 61 s | yes      | finished                      |
| 0.1    |        – |      – |         – |               – |    – |          | not started                   |
| 0.0001 |        – |      – |         – |               – |    – |          | failed: it cannot be reached. |

One run a budget, seed 0; a budget is the share of the MACs that may be left. On the frontier: no other budget is \
better in accuracy or cost without being worse in the other.

Made with commit 0123456789ab, depl0 0.1.0, torch 2.13.0.
"""


def test_the_table(result: dict[str, Any]) -> None:
    assert markdown_page(tabulate(result)) == MARKDOWN


def test_the_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result)) == result
    members = result.pop("members")
    assert result == {
        "study": "sweep",
        "recipe": "digits",
        "model": "small_cnn",
        "data": "digits",
        "seed": 0,
        "of": "macs",
        "metric": {"name": "accuracy", "unit": "%", "higher_is_better": True},
        "dense_accuracy": 99.0,
        "made_with": {"commit": ["0123456789abcdef"], "depl0": ["0.1.0"], "torch": ["2.13.0"]},
    }
    assert members[1] == {
        "name": "budget-0.5",
        "budget": 0.5,
        "status": "finished",
        "accuracy": 98.5,
        "dense_accuracy": 99.0,
        "change": -0.5,
        "validation_accuracy": None,
        "cost_left": 0.5,
        "macs_left": 0.5,
        "params_left": 0.25,
        "seconds": 61.4,
        "error": None,
        "on_frontier": True,
    }
    assert members[4] == {
        **dict.fromkeys(members[1]),
        "name": "budget-0.0001",
        "budget": 0.0001,
        "status": "failed",
        "error": "it cannot be reached.",
        "on_frontier": False,
    }


def test_every_budget_is_a_recipe_of_its_own() -> None:
    members = sweep_members(catalog.get("vgg16-cifar10"), (0.7, 0.3))  # whose own target is a fixed λ
    assert list(members) == ["budget-0.7", "budget-0.3"]
    assert [(r.target.budget, r.target.penalty_weight) for r in members.values()] == [(0.7, None), (0.3, None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5,half", r"numbers above 0 and at most 1, separated by commas, got 'half' in '0\.5,half'"),
        ("0.5,,0.3", r"got an empty place in '0\.5,,0\.3'"),
        ("", "got an empty place in ''"),
        ("0", "got 0 instead"),
        ("-0.5", r"got -0\.5 instead"),
        ("nan", "got nan instead"),
        ("0.5,1.01", r"got 1\.01 instead"),
        ("50,30", r"got 50 instead.*\n?hint: for 50 % write 0\.5\."),
        ("0.5,0.3,0.50", r"has 0\.5 more than once"),
    ],
)
def test_budgets_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_budgets(text)


# -- the picture -----------------------------------------------------------------------------------------------------


def colours(folder: Path) -> set[tuple[int, ...]]:
    with Image.open(io.BytesIO((folder / "frontier.png").read_bytes())) as image:
        assert image.format == "PNG" and min(image.size) > 600
        pixels = np.asarray(image.convert("RGB")).astype(np.int64)
    packed = np.unique(pixels @ np.array([1 << 16, 1 << 8, 1]))
    return {(int(value) >> 16, int(value) >> 8 & 255, int(value) & 255) for value in packed}


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))


def test_the_picture_shows_every_kind_of_point(result: dict[str, Any], tmp_path: Path) -> None:
    draw_frontier(result, tmp_path)
    assert {rgb(frontier.ON_FRONTIER), rgb(frontier.BESIDE), rgb(frontier.DENSE)} <= colours(tmp_path)
    svg = (tmp_path / "frontier.svg").read_text()
    assert svg.startswith("<?xml") and "</svg>" in svg
    first = (tmp_path / "frontier.png").read_bytes()
    draw_frontier(result, tmp_path)
    assert ((tmp_path / "frontier.png").read_bytes(), (tmp_path / "frontier.svg").read_text()) == (first, svg)


def test_the_picture_without_a_dense_network_or_a_second_point(tmp_path: Path) -> None:
    outcomes = [Outcome("budget-0.5", "finished", summary=a_summary(98.0, 0.5, dense=None))]
    draw_frontier(summarise(RECIPE, (0.5,), outcomes, tmp_path), tmp_path)
    assert rgb(frontier.ON_FRONTIER) in colours(tmp_path)
    assert not {rgb(frontier.BESIDE), rgb(frontier.DENSE)} & colours(tmp_path)


def test_no_picture_of_nothing(tmp_path: Path) -> None:
    study = Study("sweep", sweep_members(RECIPE, (0.5,)), tmp_path / "new")
    draw_frontier(summarise(RECIPE, (0.5,), study.outcomes(), tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_labels_do_not_cover_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(frontier, "write_picture", lambda figure, *_: drawn.append(figure))
    budgets = (0.54, 0.53, 0.52, 0.51, 0.5)
    outcomes = [Outcome(f"budget-{b}", "finished", summary=a_summary(98 + b / 10, b)) for b in budgets]
    draw_frontier(summarise(RECIPE, budgets, outcomes, tmp_path), tmp_path)
    boxes = [text.get_window_extent() for text in drawn[0].axes[0].texts]
    assert len(boxes) == 6
    assert not [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes) if i < j and a.overlaps(b)]
