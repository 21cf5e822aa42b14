"""A recipe is frozen data that refuses wrong values by the name of the field."""

from __future__ import annotations

import dataclasses
import re

import pytest

from depl0.app.recipes import SECTIONS, Recipe
from depl0.app.recipes.sections import (
    DataSection,
    DistillSection,
    FinetuneSection,
    GatesSection,
    PenaltySection,
    SearchSection,
    WeightOptimizerSection,
)
from depl0.config import GateConfig
from depl0.errors import InputError
from depl0.search.config import SearchConfig


def recipe(**sections):
    needed = {
        "gates": GatesSection(budget=0.5),
        "search": SearchSection(epochs=3),
        "weight_optimizer": WeightOptimizerSection(lr=0.1),
    }
    return Recipe(name="mine", **{**needed, **sections})


def test_values_are_stored_in_one_form():
    optimizer = WeightOptimizerSection(lr=1, schedule="step", milestones=[2, 4])
    assert optimizer == WeightOptimizerSection(lr=1.0, schedule="step", milestones=(2, 4))
    assert (type(optimizer.lr), type(optimizer.milestones)) == (float, tuple)
    assert DataSection(mean=[0, 1], std=[1, 2]).mean == (0.0, 1.0)


def test_what_fine_tuning_takes_from_the_weights_optimizer():
    weights = WeightOptimizerSection(lr=0.5, weight_decay=1e-3)
    left_out = recipe(weight_optimizer=weights)
    assert left_out.finetune_lr == 0.05
    own = recipe(weight_optimizer=weights, finetune=FinetuneSection(lr=0.2))
    assert own.finetune_lr == 0.2


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        (SearchSection, "search.epochs", "20", "must be a valid integer, got '20' instead."),
        (GatesSection, "gates.budget", 50, "must be less than or equal to 1, got 50 instead.\nhint: did you mean 0.5?"),
        (GatesSection, "gates.generator", "fcc", "got 'fcc' instead.\nhint: did you mean fc?"),
        (WeightOptimizerSection, "weight_optimizer.nesterovv", True, "is unknown.\nhint: did you mean nesterov?"),
    ],
)
def test_a_wrong_value_is_an_error_with_field_value_and_what_is_allowed(kind, field, value, message):
    needed = {SearchSection: {"epochs": 1}, WeightOptimizerSection: {"lr": 0.1}}.get(kind, {})
    with pytest.raises(InputError) as caught:
        kind(**{**needed, field.partition(".")[2]: value})
    assert str(caught.value).startswith(f"recipe field {field} ")
    assert message in str(caught.value) and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recipe(penalty=PenaltySection(weight=1e-6)), "gates.budget (0.5) and penalty.weight (1e-06) are both"),
        (lambda: recipe(distill=DistillSection(weight=0.5)), "distill.weight must be 0 where model.weights is empty"),
        (lambda: SearchSection(epochs=1, warmup=0.5), "search.warmup and search.ramp must together be at most 1, got"),
        (lambda: recipe().replace(name="a/b"), "name must be a name for a folder: one line, no path, got 'a/b'"),
    ],
)
def test_fields_that_contradict_each_other(make, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("kind", SECTIONS.values())
def test_what_may_be_left_out_of_a_file_is_none_by_default(kind):
    """Else a None that was chosen would be written as absent and read back as the default."""
    fields = kind.model_json_schema()["properties"].items()
    optional = {name for name, schema in fields if {"type": "null"} in schema.get("anyOf", ())}
    assert all(kind.model_fields[name].default is None for name in optional)


def test_a_setting_has_one_name_in_python_and_in_recipes():
    gates = {field.name for field in dataclasses.fields(GateConfig)}
    assert set(GatesSection.model_fields) == gates | {"method", "method_weight"}
    search = {field.name for field in dataclasses.fields(SearchConfig)}
    training = {"epochs", "clip_norm", "dense_baseline"}
    assert set(SearchSection.model_fields) == search | training
