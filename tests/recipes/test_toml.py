"""Recipes go to TOML and back unchanged; what is wrong in a file is named."""

from __future__ import annotations

import re

import pytest

from depl0.app.recipes import get, parse_recipe, read_recipe, task_of, with_overrides, write_recipe
from depl0.app.tasks import find_task
from depl0.errors import InputError

SMALL = """
name = "small"
[gates]
budget = 0.5
[search]
epochs = 3
[weight_optimizer]
lr = 0.1
"""

CHANGES = {
    "data.image_size": (48, 80),
    "data.mean": (0.1, 0.2, 0.3),
    "data.std": (1.0, 1.0, 1.0),
    "task.settings": {"label_smoothing": 0.1, "b": "x"},
    "task.spec": "own.py:Name",
    "gates.groups": ("layer1.*", "-conv1"),
    "gates.budget": 1,
    "search.clip_norm": 5,
    "run.trackers": (),
}


@pytest.mark.parametrize("name", ["resnet20-cifar10-backward", "vgg16-cifar10-paper"])
def test_a_recipe_reads_back_as_it_was(name):
    for recipe in (get(name), with_overrides(get(name), CHANGES)):
        text = write_recipe(recipe)
        again = parse_recipe(text)
        assert again == recipe
        assert write_recipe(again) == text
        kinds = [{key: type(value) for key, value in section} for section in (again.data, recipe.data)]
        assert kinds[0] == kinds[1]


def test_a_file_needs_only_what_has_no_default(tmp_path):
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())  # as a Windows editor saves it
    recipe = read_recipe(path)
    assert recipe == read_recipe(str(path)) == parse_recipe(SMALL)
    assert (recipe.name, recipe.search.epochs, recipe.gates.budget) == ("small", 3, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("epochs = 3", ""), "recipe field search.epochs is missing."),
        (SMALL.replace("name =", "nmae ="), "recipe field nmae is unknown.\nhint: did you mean name?"),
        (SMALL.replace("0.1", "nan"), "recipe field weight_optimizer.lr must be a finite number, got nan instead."),
        (SMALL.replace("epochs = 3", "epochs 3"), "recipe is not valid TOML: Expected '=' after a key"),
        (SMALL.replace("= 3", "= " + "[" * 100_000), "recipe is not valid TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text, message):
    with pytest.raises(InputError) as caught:
        parse_recipe(text)
    assert str(caught.value).startswith(message)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"name = '\xff'")
    for path in (tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(InputError, match=re.escape(f"recipe file {str(path)!r} cannot be read: ")):
            read_recipe(path)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("search.epochs", "20", 20),
        ("weight_optimizer.nesterov", "true", True),
        ("gates.groups", '["layer1.*", "-conv1"]', ("layer1.*", "-conv1")),
        ("search.clip_norm", "none", None),
        ("run.trackers", "[]", ()),
    ],
)
def test_overrides(key, value, stored):
    before = get("digits")
    after = with_overrides(before, {key: value})
    section, dot, name = key.partition(".")
    found = getattr(getattr(after, section), name) if dot else getattr(after, key)
    assert found == stored
    assert type(found) is type(stored)
    assert before == get("digits")


def test_a_budget_takes_the_place_of_a_penalty_weight_and_the_other_way():
    penalised = with_overrides(get("digits"), {"penalty.weight": "1e-6"})
    assert (penalised.gates.budget, penalised.penalty.weight) == (None, 1e-6)
    budgeted = with_overrides(penalised, {"gates.budget": 0.5, "gates.of": "params"})
    assert (budgeted.gates.budget, budgeted.penalty.weight, budgeted.gates.of) == (0.5, None, "params")
    with pytest.raises(InputError, match="are both set"):
        with_overrides(budgeted, {"gates.budget": 0.5, "penalty.weight": 1e-6})


def test_wrong_overrides():
    with pytest.raises(InputError, match=r"no field epochs.\nhint: did you mean search.epochs or finetune"):
        with_overrides(get("digits"), {"epochs": "3"})


def test_the_task_and_its_settings_are_written_as_a_table():
    text = SMALL + '[task]\nspec = "segmentation"\nsettings = {ignore_index = 0}\n'
    recipe = parse_recipe(text)
    assert task_of(recipe) == find_task("segmentation", ignore_index=0)
    assert '[task]\nspec = "segmentation"\n\n[task.settings]\nignore_index = 0\n' in write_recipe(recipe)
    assert parse_recipe(write_recipe(recipe)) == recipe
    changed = with_overrides(recipe, {"task.settings": "{ignore_index = 3}"})
    assert task_of(changed) == find_task("segmentation", ignore_index=3)
    assert with_overrides(recipe, {"task.settings": "none"}).task.settings is None
