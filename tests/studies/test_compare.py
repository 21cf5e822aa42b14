"""Methods and budgets are read with clear errors; a comparison's table, JSON and picture from fixed summaries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from depl0.app.cli.options import read_budgets
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.compare import Comparison, read_methods
from depl0.app.studies.pictures import comparison
from depl0.app.studies.study import Outcome
from depl0.app.studies.tables import paired_differences, tabulate
from depl0.app.table import markdown
from depl0.app.tasks import ACCURACY
from depl0.errors import InputError
from tests.support.summaries import a_summary, finish_run

RECIPE = catalog.get("digits")
METHODS = ("dep-l0", "dep-l0:backward", "l0-hc")


def gates(recipe: Recipe) -> tuple[str, str, str]:
    return recipe.gates.method, recipe.gates.generator, recipe.gates.direction


def test_the_members_differ_in_method_and_seed_alone() -> None:
    recipe = with_overrides(RECIPE, {"run.seed": 5})
    members = Comparison(recipe, METHODS, 2).members()
    assert {name: (gates(member), member.run.seed) for name, member in members.items()} == {
        "dep-l0/seed-5": (("dep-l0", "fc", "forward"), 5),
        "dep-l0-backward/seed-5": (("dep-l0", "fc", "backward"), 5),
        "l0-hc/seed-5": (("l0-hc", "independent", "forward"), 5),
        "dep-l0/seed-6": (("dep-l0", "fc", "forward"), 6),
        "dep-l0-backward/seed-6": (("dep-l0", "fc", "backward"), 6),
        "l0-hc/seed-6": (("l0-hc", "independent", "forward"), 6),
    }
    for member in members.values():
        same = {"gates.method": "dep-l0", "gates.generator": "fc", "gates.direction": "forward", "run.seed": 5}
        assert with_overrides(member, same) == recipe


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("dep-l0,", "got an empty place in 'dep-l0,'"),
        ("dep-l0:sideways", "'sideways' is neither a generator nor a direction"),
    ],
)
def test_methods_that_are_none(methods: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Comparison(RECIPE, read_methods(methods), 1).members()


def test_a_fair_comparison_needs_a_budget() -> None:
    with pytest.raises(InputError, match=r"needs a budget.* vgg16-cifar10 has the fixed λ 1e-06.*\nhint: .*--budget"):
        Comparison(catalog.get("vgg16-cifar10"), METHODS, 3)


# -- the table -------------------------------------------------------------------------------------------------------

SUMMARIES = {
    "dep-l0/seed-0": a_summary(98.0, 0.25, dense=99.0),
    "dep-l0/seed-1": a_summary(97.0, 0.24, dense=99.5, seconds=65.4),
    "l0-hc/seed-0": a_summary(96.0, 0.25),
}


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    comparison = Comparison(RECIPE, METHODS, 2)
    outcomes = []
    for name in comparison.members():
        if name in SUMMARIES:
            finish_run(tmp_path / name, SUMMARIES[name])
            outcomes.append(Outcome(name, "finished", summary=SUMMARIES[name]))
        elif name == "l0-hc/seed-1":
            outcomes.append(Outcome(name, "failed", failure="the loss became nan."))
        else:
            outcomes.append(Outcome(name, "not started"))
    return comparison.summarise(outcomes, tmp_path)


MARKDOWN = """\
# digits: methods compared

| method          |      n |       accuracy |       change |    MACs left | parameters left |     time |
|:----------------|-------:|---------------:|-------------:|-------------:|----------------:|---------:|
| dep-l0          |      2 | 97.50 ± 0.71 % | -1.75 ± 1.06 | 24.5 ± 0.7 % |    12.2 ± 0.4 % | 63 ± 3 s |
| dep-l0:backward | 0 of 2 |              – |            – |            – |               – |        – |
| l0-hc           | 1 of 2 |        96.00 % |        -3.00 |       25.0 % |          12.5 % |     61 s |

Budget 0.25 of the MACs, 25 epochs of search, 20 of fine-tuning; mean ± sample standard deviation over n seeds.

Dense network: accuracy 99.00 %.

Not in the table: dep-l0-backward/seed-0: not started; dep-l0-backward/seed-1: not started; l0-hc/seed-1: failed: the \
loss became nan.

Made with commit 0123456789ab, depl0 0.1.0, torch 2.13.0.
"""


def test_the_table(result: dict[str, Any]) -> None:
    assert markdown(tabulate(result), "# {}") == MARKDOWN


# -- several budgets -------------------------------------------------------------------------------------------------

BUDGETS = (0.9, 0.5, 0.3, 0.1, 0.0001)
SWEPT = {0.9: a_summary(98.0, 0.899), 0.5: a_summary(98.5, 0.5), 0.3: a_summary(95.0, 0.298)}


def sweep(
    folder: Path, budgets: Sequence[float], summaries: dict[float, dict[str, Any]], recipe: Recipe = RECIPE
) -> dict[str, Any]:
    """The result of one method at several budgets, one seed each."""
    comparison = Comparison(recipe, (), 1, budgets)
    outcomes = []
    for name, recipe in comparison.members().items():
        summary = summaries.get(recipe.gates.budget or 0.0)
        if summary is not None:
            finish_run(folder / name, summary)
            outcomes.append(Outcome(name, "finished", summary=summary))
        else:
            outcomes.append(Outcome(name, "failed", failure="it cannot be reached."))
    return comparison.summarise(outcomes, folder)


def test_the_table_of_several_budgets(tmp_path: Path) -> None:
    result = sweep(tmp_path, BUDGETS, SWEPT)
    table = tabulate(result)
    first, *_, last = table.shown()
    assert table.notes[1] == "Dense network: accuracy 99.00 %."
    assert first == ["dep-l0", "0.9", "1", "98.00 %", "-1.00", "89.9 %", "45.0 %", "61 s"]
    assert last[:4] == ["dep-l0", "0.0001", "0 of 1", "–"]
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5,half", r"numbers above 0 and at most 1, separated by commas, got 'half' in '0\.5,half'"),
        ("50,30", r"got 50 instead.*\n?hint: for 50 % write 0\.5\."),
        ("0.5,0.3,0.50", r"has 0\.5 more than once"),
    ],
)
def test_budgets_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_budgets(text)


def test_the_picture(tmp_path: Path) -> None:
    assert comparison(sweep(tmp_path / "one", (0.5,), SWEPT)) is None
    drawing = comparison(sweep(tmp_path / "runs", BUDGETS, SWEPT))
    assert drawing is not None
    (axes,) = drawing.figure().axes
    assert list(axes.lines[0].get_xdata()) == [0.298, 0.5, 0.899]
    assert list(axes.lines[0].get_ydata()) == [95.0, 98.5, 98.0]
    assert {text.get_text() for text in axes.texts} == {"95.00 %", "98.50 %", "98.00 %"}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dep-l0", "dense: 99.00 %"]
    assert axes.get_xlabel() == "fraction of the MACs left"


def test_differences_are_paired_by_seed() -> None:
    rows = [
        {"method": method, "budget": 0.5, "by_seed": {str(seed): score for seed, score in enumerate(scores)}}
        for method, scores in {"good": [95.0, 96.0, 97.0], "cheap": [90.0, 91.1, 91.9]}.items()
    ]
    table = paired_differences({"recipe": "r", "metric": ACCURACY.to_dict(), "methods": rows})
    (row,) = table.shown()
    assert row[:4] == ["good less cheap", "0.5", "3", "+5.00"]
    assert row[4] == "+4.75 to +5.25"  # 4.303 · 0.1 / √3


def test_a_metric_that_improves_downwards(tmp_path: Path) -> None:
    rmse = {"name": "rmse", "unit": "", "higher_is_better": False}
    summaries = {}
    for budget, error in ((0.7, 0.125), (0.5, 0.15)):
        summary = {**a_summary(0.0, budget), "metric": rmse}
        for network, value in (("compact", error), ("dense", 0.1)):
            summary[network] = {**summary[network], "rmse": value}
            del summary[network]["accuracy"]
        summaries[budget] = summary
    regression = with_overrides(RECIPE, {"task.spec": "regression"})
    table = tabulate(sweep(tmp_path, tuple(summaries), summaries, regression))
    first, *_ = table.shown()
    assert "Dense network: RMSE 0.1." in table.notes and first[:6] == [
        "dep-l0",
        "0.7",
        "1",
        "0.125",
        "+0.025",
        "70.0 %",
    ]
    assert "RMSE: lower is better." in table.notes
