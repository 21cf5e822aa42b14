"""The ablation's members, and its table from fixed summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.errors import InputError
from depl0.generators import GENERATORS
from depl0.recipes import catalog
from depl0.recipes.toml import with_overrides
from depl0.studies import ablation
from depl0.studies.ablation import Ablation, tabulate, with_data_folder
from depl0.studies.study import Outcome
from tests.studies.summaries import a_summary

DIGITS = catalog.get("digits")


def test_every_generator_there_is_takes_part() -> None:
    assert sorted(ablation.GENERATORS) == sorted(GENERATORS)
    recipes = [DIGITS, catalog.get("lenet5-fashion-mnist")]
    members = Ablation(recipes).members()
    assert list(members) == [f"{recipe.name}/{name}" for recipe in recipes for name in ablation.GENERATORS]
    for name, recipe in members.items():
        assert recipe.gates.generator == name.split("/")[1]
        assert recipe.gates.direction == "forward"
        assert not recipe.search.dense_baseline
    reference = members["digits/independent"]
    same = {"gates.method": "dep-l0", "gates.generator": "fc", "search.dense_baseline": True}
    assert with_overrides(reference, same) == DIGITS


def test_where_the_images_are() -> None:
    assert with_data_folder(catalog.get("lenet5-fashion-mnist"), "a:b").data.spec == "fashion-mnist:a:b"
    assert with_data_folder(DIGITS, "a") == DIGITS


def test_a_recipe_twice() -> None:
    with pytest.raises(InputError, match="has recipe digits more than once"):
        Ablation([DIGITS, DIGITS])


MARKDOWN = """\
# Generators of the paper's appendix B

| recipe | generator | accuracy | MACs left | parameters left | time | status |
|---|---|---|---|---|---|---|
| digits | independent | 98.50 % | 25.0% | 12.5% | 61 s | finished |
| digits | fc | – | – | – | – | half done |
| digits | fc-relu | – | – | – | – | not started |
| digits | fc-tanh | – | – | – | – | not started |
| digits | conv1d | – | – | – | – | not started |
| digits | conv1d-deep | – | – | – | – | not started |
| digits | lstm | – | – | – | – | not started |

One run each (n = 1), seed 0, walked forward; independent is L0-HC, the reference.
"""


def test_the_table(tmp_path: Path) -> None:
    study = Ablation([DIGITS])
    outcomes = [Outcome(name, "not started") for name in study.members()]
    outcomes[0] = Outcome("digits/independent", "finished", summary=a_summary(98.5, 0.25, dense=None))
    outcomes[1] = Outcome("digits/fc", "half done")
    result = study.summarise(outcomes, tmp_path)
    assert tabulate(result).markdown() == MARKDOWN
    assert result["members"][0]["direction"] == "forward"
