"""Which recipe a command line without one stands for."""

from __future__ import annotations

from typing import Any

import pytest

from depl0.app.cli.prune import chosen_recipe, recipe_for, with_model
from depl0.app.recipes import get, task_of
from depl0.app.recipes.recipe import distill_share
from depl0.errors import InputError


def test_own_network_gets_a_name_of_its_own() -> None:
    recipe = recipe_for("nets/mine.py:make", "folder:some/where")
    assert recipe.name == "nets-mine.py-make-folder"
    assert not recipe.search.dense_baseline, "nobody asked for a second training"
    assert recipe.replace(name="custom") == get("custom")
    with pytest.raises(InputError, match="needs data"):
        recipe_for("nets/mine.py:make", None)


@pytest.mark.parametrize("trained", [{"pretrained": True}, {}])
def test_a_model_may_stand_in_the_place_of_the_recipe(trained: dict[str, Any]) -> None:
    options = {"model": None, "weights": None, "pretrained": None, "quick": False, "data": "digits", **trained}
    found = chosen_recipe(**with_model({"recipe": "timm:resnet18", **options}))
    assert found == chosen_recipe(**{**options, "model": "timm:resnet18", "quick": bool(trained)})
    assert (found.gates.method == "reconstruction") == bool(trained)
    for recipe in ("digits", "C:/my.toml", None):
        assert with_model({"recipe": recipe, **options}) == {"recipe": recipe, **options}


def test_a_trained_network_of_ones_own_gets_gentle_rates() -> None:
    for options in ({"weights": "file.pt", "model": "small_cnn"}, {"pretrained": True, "model": "timm:resnet18"}):
        for recipe in ("custom", None):
            chosen = chosen_recipe(recipe=recipe, data="digits", **options)
            assert (chosen.weight_optimizer.lr, chosen.weight_optimizer.warmup_epochs) == (0.01, 0.5)
            assert chosen.finetune_lr == 0.01
    assert chosen_recipe(model="small_cnn", data="digits", weights="file.pt", lr=0.2).weight_optimizer.lr == 0.2
    assert chosen_recipe(model="small_cnn", data="digits").weight_optimizer.lr == get("custom").weight_optimizer.lr
    assert chosen_recipe("resnet20-cifar10", weights="file.pt").weight_optimizer.lr == 0.02


def test_the_task_of_the_command_line() -> None:
    recipe = chosen_recipe(task="segmentation", set_=["task.settings={ignore_index=0}"])
    assert (recipe.task.spec, recipe.task.settings) == ("segmentation", {"ignore_index": 0})
    assert chosen_recipe(model="small_cnn", data="digits", task="my_tasks.py:Own").task.spec == "my_tasks.py:Own"
    assert chosen_recipe().task.spec == "classification"
    with pytest.raises(InputError, match=r"task\.spec must be one of .*got 'regresion' instead"):
        chosen_recipe(task="regresion")


def test_trained_networks_are_scored_unless_gates_are_asked_for() -> None:
    trained = chosen_recipe(model="resnet20", data="digits", weights="w.safetensors")
    assert (trained.gates.method, trained.search.compensate) == ("reconstruction", True)
    assert trained.finetune.schedule == "continued" and distill_share(trained, task_of(trained)) == 0.9
    asked: list[dict[str, Any]] = [{"set_": ["gates.generator=lstm-shared"]}, {"method": "dep-l0"}]
    for options in asked:
        chosen = chosen_recipe(model="resnet20", data="digits", weights="w.safetensors", **options)
        assert chosen.gates.method == "dep-l0"
    assert chosen_recipe(model="resnet20", data="digits").gates.method == "dep-l0"
    assert chosen_recipe("resnet20-cifar10", weights="w.safetensors").gates.method == "reconstruction"
    assert chosen_recipe("resnet20-cifar10", weights="w.safetensors", method="dep-l0").gates.method == "dep-l0"
