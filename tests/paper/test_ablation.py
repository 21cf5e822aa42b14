"""The ablation's members, and its table from fixed summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides
from depl0.app.studies.study import Outcome
from depl0.app.table import markdown_page
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS
from depl0.paper import ablation
from depl0.paper.ablation import Ablation, tabulate, with_data_folder
from tests.support.summaries import a_summary

DIGITS = catalog.get("digits")


def test_every_generator_there_is_takes_part() -> None:
    left_out = {"lstm-shared"}  # studies that were begun go on; depl0 compare takes it (docs/paper.md)
    controls = {"fc-const", "fc-frozen", "fc-shuffled", "independent-fc"}  # for benchmarks/paper_regime.py
    assert {*ablation.GENERATORS, *left_out, *controls} == set(GENERATORS)
    recipes = [DIGITS, catalog.get("lenet5-fashion-mnist")]
    members = Ablation(recipes, seeds=2).members()
    assert list(members) == [
        f"{recipe.name}/{name}/seed-{seed}" for recipe in recipes for seed in (0, 1) for name in ablation.GENERATORS
    ]
    for name, recipe in members.items():
        assert recipe.gates.generator == name.split("/")[1]
        assert f"seed-{recipe.run.seed}" == name.split("/")[2]
        assert recipe.gates.direction == "forward"
        assert not recipe.search.dense_baseline
    reference = members["digits/independent/seed-0"]
    same = {"gates.method": "dep-l0", "gates.generator": "fc", "search.dense_baseline": True}
    assert with_overrides(reference, same) == DIGITS


def test_where_the_images_are() -> None:
    assert with_data_folder(catalog.get("lenet5-fashion-mnist"), "a:b").data.spec == "fashion-mnist:a:b"
    assert with_data_folder(DIGITS, "a") == DIGITS


def test_a_recipe_twice() -> None:
    with pytest.raises(InputError, match="has recipe digits more than once"):
        Ablation([DIGITS, DIGITS], seeds=1)


MARKDOWN = """\
# Generators of the paper's appendix B

| recipe | generator   |      n |       accuracy |   MACs left | parameters left |     time |
|:-------|:------------|-------:|---------------:|------------:|----------------:|---------:|
| digits | independent |      2 | 98.00 ± 0.71 % | 25.0 ± 0.0% |     12.5 ± 0.0% | 61 ± 0 s |
| digits | bias        | 0 of 2 |              – |           – |               – |        – |
| digits | fc          | 1 of 2 |        99.00 % |       24.0% |           12.0% |     61 s |
| digits | fc-relu     | 0 of 2 |              – |           – |               – |        – |
| digits | fc-tanh     | 0 of 2 |              – |           – |               – |        – |
| digits | conv1d      | 0 of 2 |              – |           – |               – |        – |
| digits | conv1d-deep | 0 of 2 |              – |           – |               – |        – |
| digits | lstm        | 0 of 2 |              – |           – |               – |        – |

Walked forward; mean ± sample standard deviation over n seeds. independent is L0-HC, the reference.

Not in the table: {missing}
"""


def test_the_table(tmp_path: Path) -> None:
    study = Ablation([DIGITS], seeds=2)
    outcomes = {name: Outcome(name, "not started") for name in study.members()}
    for name, accuracy, left in (
        ("independent/seed-0", 98.5, 0.25),
        ("independent/seed-1", 97.5, 0.25),
        ("fc/seed-0", 99.0, 0.24),
    ):
        outcomes[f"digits/{name}"] = Outcome(
            f"digits/{name}", "finished", summary=a_summary(accuracy, left, dense=None)
        )
    outcomes["digits/fc/seed-1"] = Outcome("digits/fc/seed-1", "half done")
    result = study.summarise(list(outcomes.values()), tmp_path)
    late = [
        f"digits/{name}/seed-{seed}: {'half done' if name == 'fc' else 'not started'}"
        for seed in (0, 1)
        for name in ablation.GENERATORS[1:]
        if (name, seed) != ("fc", 0)
    ]
    missing = "; ".join(late)
    assert markdown_page(tabulate(result)) == MARKDOWN.format(missing=missing)
    assert result["generators"][0]["direction"] == "forward"
    found = {member["name"]: member["accuracy"] for member in result["members"]}
    assert found["digits/fc/seed-0"] == 99.0
    assert found["digits/fc/seed-1"] is None
