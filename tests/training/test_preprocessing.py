"""How images are read for a trained network, said at once, and stopped where the network does not know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from depl0.app.models.preprocessing import published_preprocessing
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe
from depl0.app.training.setup import preprocessing_of, with_preprocessing
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe

SIDES = (6, 10)


class Brightest(nn.Module):
    """Knows which third of an image of 6×10 pixels is brightest, and nothing of other sizes."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1)
        self.bias = nn.Parameter(torch.zeros(num_classes))
        for layer in (self.conv, self.last):
            nn.init.constant_(layer.weight, 1.0)
            nn.init.constant_(layer.bias, 10.0)

    def forward(self, images: Tensor) -> Tensor:
        brightness = self.last(self.conv(images).relu()).relu()[..., :9]
        return brightness.unflatten(-1, (3, 3)).mean((1, 2, 4)) + self.bias


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 6×10 pixels whose class is the third that is bright; the network's weights beside them."""
    root = tmp_path_factory.mktemp("thirds")
    rng = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 12)):
        for label, name in enumerate("abc"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 100, (*SIDES, 3), dtype=np.uint8)
                pixels[:, 3 * label : 3 * label + 3] += 150
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    save_file(Brightest().state_dict(), root / "dense.safetensors")
    return root


def recipe_for(folder: Path, **fields: Any) -> Recipe:
    return tiny_recipe(
        model__spec=f"{__name__}:Brightest",
        model__weights=str(folder / "dense.safetensors"),
        data__spec=f"folder:{folder}",
        data__augment="none",
        data__workers=0,
        gates__method="reconstruction",
        search__epochs=0,
        finetune__epochs=0,
        **{"data__image_size": SIDES, **fields},
    )


def test_the_header_says_how_images_are_read(folder: Path, tmp_path: Path) -> None:
    reporter = Noisy()
    summary = run(recipe_for(folder), tmp_path / "run", reporter=reporter)
    assert summary["dense"]["accuracy"] == 100.0
    header = next(note for note in reporter.notes if note.startswith("network"))
    assert "mean 0.485 0.456 0.406, std 0.229 0.224 0.225" in header
    kept = read_recipe(str(tmp_path / "run" / "recipe.toml"))
    assert kept.data.image_size == (6, 10), "eval and export read it alike"


def test_trained_weights_near_chance_stop_the_run(folder: Path, tmp_path: Path) -> None:
    wrong = {"data__image_size": (10, 40)}
    with pytest.raises(InputError) as stopped:
        run(recipe_for(folder, **wrong), tmp_path / "stopped")
    assert "the trained weights score 33.3 % on folder:" in stopped.value.message
    assert "guessing scores 33.3 %: are its images prepared as" in stopped.value.message
    assert "3×10×40, mean 0.485 0.456 0.406" in stopped.value.message
    assert "in order: a, b, c …" in stopped.value.message
    assert "data.image_size=[48, 80]" in str(stopped.value.hint) and "model.allow_chance=true" in str(
        stopped.value.hint
    )
    allowed = run(recipe_for(folder, **wrong, model__allow_chance=True), tmp_path / "allowed")
    assert allowed["dense"]["accuracy"] < 40


def test_size_and_normalisation_are_those_of_the_published_network(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    timm_fields = published_preprocessing("timm:mobilenetv2_100.ra_in1k")
    assert timm_fields["image_size"] == (224, 224) and timm_fields["interpolation"] == "bicubic"
    assert timm_fields["crop_share"] == 0.875 and timm_fields["mean"] == (0.485, 0.456, 0.406)
    half = (0.5, 0.5, 0.5)
    assert published_preprocessing("timm:mixer_b16_224.miil_in21k_ft_in1k")["crop_share"] == 0.875
    assert published_preprocessing("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")["mean"] == half
    assert published_preprocessing("resnet20") == {}
    large = published_preprocessing("torchvision:resnet50")
    assert large["image_size"] == (224, 224) and large["crop_share"] == 224 / 232


def test_the_recipe_comes_before_what_the_library_publishes(folder: Path) -> None:
    pytest.importorskip("timm")
    base = recipe_for(folder)
    published = base.replace(model=base.model.replace(spec="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"))
    data = with_preprocessing(published, preprocessing_of(published)).data
    assert (data.image_size, data.crop_share, data.interpolation) == ((6, 10), None, "bicubic")
    assert data.mean == data.std == (0.5, 0.5, 0.5)
    assert preprocessing_of(base) == preprocessing_of(tiny_recipe()) == {}
