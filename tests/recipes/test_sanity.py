"""Results that would not mean anything are announced."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.networks.tiny import tiny_recipe

from depl0.app.data import Data, open_data
from depl0.app.recipes import catalog
from depl0.app.recipes.sanity import warnings_for

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.fixture(scope="module")
def data() -> Data:
    return open_data("digits")


@pytest.mark.parametrize("name", catalog.names())
def test_the_recipes_of_the_catalogue_are_beyond_doubt(name: str, data: Data) -> None:
    assert warnings_for(catalog.get(name), data) == []


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (
            "penalty__weight",
            1e30,
            "weight is 1e+30: one parameter costs more than any accuracy is worth",
        ),
        ("penalty__weight", 3.0, "weight is 3: one parameter costs more than any accuracy is worth"),
        ("gate_optimizer__lr", 1e6, "gate_optimizer.lr is 1e+06: one step of Adam moves log α by about as much"),
        ("weight_optimizer__lr", 1e3, "weight_optimizer.lr is 1000: no network learns at such a rate"),
        ("finetune__lr", 50.0, "finetune.lr is 50: no network learns"),
        (
            "weight_optimizer__momentum",
            0.999999,
            "momentum is 0.999999: a mean over the last 1,000,000 steps",
        ),
        ("gate_optimizer__betas", [0.99999, 0.999], "gate_optimizer.betas is 0.99999: a mean over the last 100,000"),
        ("search__ema_decay", 0.99999, "search.ema_decay is 0.99999: a mean over the last 100,000 steps, of which"),
    ],
)
def test_absurd_settings(data: Data, field: str, value: Any, text: str) -> None:
    (found,) = warnings_for(tiny_recipe(**{field: value}), data)
    assert text in found


def test_a_long_mean_is_fine_in_a_long_training(data: Data) -> None:
    assert warnings_for(tiny_recipe(search__ema_decay=0.999, search__epochs=200), data) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_classes": 1}, "one class: every network gets 100 %"),
        ({"train_size": 1}, "one training image"),
        ({"test_size": 1}, "one test image: the accuracy can only be 0 or 100 %"),
        (
            {"num_classes": 3, "class_counts": ((5, 5, 5), (2, 0, 2)), "class_names": ("ant", "bee", "cat")},
            "1 of 3 classes have no test images and are not part of the accuracy: bee.",
        ),
        (
            {"num_classes": 9, "class_counts": ((5, 5) + (0,) * 7, (1,) * 9), "class_names": None},
            "7 of 9 classes have no training images and cannot be learned: 2, 3, 4, 5, 6 and 2 more.",
        ),
    ],
)
def test_data_that_prove_nothing(data: Data, fields: dict[str, Any], text: str) -> None:
    changed = dataclasses.replace(data, info=dataclasses.replace(data.info, **fields))
    (found,) = warnings_for(tiny_recipe(), changed)
    assert text in found
