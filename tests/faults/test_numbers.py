"""Numbers that go wrong: the step, the cause, and a checkpoint that is still good."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import load_newest
from depl0.app.runtime.guard import wrong_parameter
from depl0.errors import DataError, DivergedError, InputError
from tests.networks.tiny import TinyNet, run, tiny_gated, tiny_recipe

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

HERE = "tests.networks.faulty:"


def last_good(out: Path) -> tuple[int, dict[str, Any]]:
    found = load_newest(out / "checkpoints")
    assert found is not None
    assert all(bool(value.isfinite().all()) for value in found[1]["model"].values())
    return found


def test_a_gradient_that_explodes_is_found_before_the_next_checkpoint(tmp_path: Path) -> None:
    recipe = tiny_recipe(model__spec=HERE + "GradientThatExplodes", run__checkpoint_steps=2, search__warmup=0.0)
    wrong = r" became (nan|inf) (at|by) step 6 \(search, epoch 2, learning rate"
    with pytest.raises(DivergedError, match=wrong) as caught:
        run(recipe, tmp_path / "run")
    assert "lower the learning rates" in str(caught.value)
    assert last_good(tmp_path / "run")[0] == 4


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_alpha_is_looked_at(value: float) -> None:
    gated = tiny_gated(generator="independent")
    assert wrong_parameter(gated, 3) is None
    with torch.no_grad():
        next(iter(gated.generator.parameters()))[..., 0] = value
    assert str(wrong_parameter(gated, 3)).startswith("log α became ")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_statistics_of_norms_are_looked_at_and_masks_are_not(value: float) -> None:
    gated = tiny_gated()
    gated.host.register_buffer("mask", torch.full((3,), -math.inf))
    assert wrong_parameter(gated, 7) is None
    gated.host.get_submodule("bn1").get_buffer("running_var")[2] = value
    assert wrong_parameter(gated, 7) == f"host.bn1.running_var became {value} by step 7"


def test_statistics_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    network = TinyNet()
    network.bn2.running_var[1] = math.inf
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    recipe = tiny_recipe(model__weights=str(tmp_path / "w.safetensors"), search__epochs=1, finetune__epochs=0)
    with pytest.raises(DivergedError, match=r"bn2\.running_var became inf"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "compact").exists()


@pytest.mark.parametrize("option", ["gate_optimizer.lr"])
def test_a_learning_rate_that_explodes(tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(write_recipe(tiny_recipe(search__warmup=0.0, penalty__weight=1.0)))
    out = tmp_path / "run"
    settings = ["--set", f"{option}=1e38", "--set", "run.checkpoint_steps=1"]
    code = main(["prune", str(recipe), "--out", str(out), "--quiet", *settings])
    message = capsys.readouterr().err
    assert code == 1
    assert "became" in message and " step " in message and "hint: " in message
    assert "Traceback" not in message
    if (out / "checkpoints").exists():
        last_good(out)


# -- odd batches -----------------------------------------------------------------------------------------------------


def test_a_batch_of_one_value_is_explained(tmp_path: Path) -> None:
    recipe = tiny_recipe(model__spec=HERE + "OnePixel", data__batch_size=1, data__limit_train=4, search__epochs=1)
    with pytest.raises(InputError, match="more than one value per channel") as caught:
        run(recipe, tmp_path / "run")
    assert "larger --batch-size" in str(caught.value)


def test_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no_images"):
        run(tiny_recipe(data__spec=HERE + "no_images"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
