"""Training images that are held out for choices: the same for every seed, unchanged, and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from depl0.app.data import Data, DataSettings, open_data
from depl0.app.data.base import Batches
from tests.support.layouts import write_folder

TWENTY = """
import torch
def make(settings):
    images = torch.arange(25, dtype=torch.uint8).view(25, 1, 1, 1).expand(25, 1, 4, 4).contiguous()
    return (images[:20], torch.arange(20) % 5), (images[20:], torch.arange(5))
"""
PLAIN = DataSettings(batch_size=4, mean=(0.0,), std=(1.0,), crop_padding=1, augment="crop-flip", eval_batch_size=3)


@pytest.fixture
def twenty(tmp_path: Path) -> str:
    """A data set in which every pixel is the number of its image."""
    (tmp_path / "mine.py").write_text(TWENTY)
    return f"{tmp_path / 'mine.py'}:make"


def numbers(batches: Batches | None) -> list[int]:
    assert batches is not None
    return [round(float(image.max()) * 255) for images, _ in batches.epoch(0) for image in images]


def opened(spec: str, rank: int = 0, world: int = 1, **changes: Any) -> Data:
    return open_data(spec, PLAIN.replace(**changes), rank=rank, world=world)


def test_held_out_images_are_training_images_that_are_not_trained_on(twenty: str) -> None:
    data = opened(twenty, validation=0.2)
    held_out, trained = numbers(data.validation), numbers(data.train)
    assert (len(held_out), len(trained)) == (4, 16)
    assert sorted(held_out + trained) == list(range(20))
    assert (data.info.train_size, data.info.validation_size, data.info.test_size) == (16, 4, 5)
    assert (data.split, data.for_choices) == ("validation", data.validation)
    assert data.validation is not None
    for images, _ in data.validation.epoch(0):  # neither cropped nor mirrored
        assert all(len(image.unique()) == 1 for image in images)


def test_the_split_does_not_depend_on_the_seed_and_small_ones_nest(twenty: str) -> None:
    chosen = [numbers(opened(twenty, validation=0.2, seed=seed).validation) for seed in (0, 1)]
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) < set(numbers(opened(twenty, validation=0.5).validation))
    assert set(numbers(opened(twenty, validation=0.2, limit_train=10).validation)) < set(
        numbers(opened(twenty, limit_train=10, batch_size=10).train)
    )


def test_without_it_nothing_changes(twenty: str) -> None:
    data = opened(twenty)
    assert data.validation is None
    assert (data.split, data.for_choices, data.info.validation_size) == ("test", data.test, 0)


def test_processes_share_it(twenty: str) -> None:
    whole = numbers(opened(twenty, validation=0.2).validation)
    assert [n for rank in (0, 1) for n in numbers(opened(twenty, rank, 2, validation=0.2).validation)] == whole


def test_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    settings = {"image_size": 8, "mean": (0, 0, 0), "std": (1, 1, 1), "augment": "none", "batch_size": 1}
    every = opened(f"folder:{tmp_path / 'images'}", **settings)
    data = opened(f"folder:{tmp_path / 'images'}", validation=0.5, **settings)

    def images(*parts: Batches | None) -> list[bytes]:
        batches: list[Tensor] = [batch for part in parts if part is not None for batch, _ in part.epoch(0)]
        return sorted(image.numpy().tobytes() for image in torch.cat(batches))

    assert data.info.validation_size > 0
    assert images(data.train, data.validation) == images(every.train)
    assert images(data.test) == images(every.test)


def make_sets() -> tuple[TensorDataset, TensorDataset]:
    images = torch.arange(25).view(25, 1, 1, 1) / 255 * torch.ones(25, 1, 4, 4)
    return TensorDataset(images[:20], torch.arange(20) % 5), TensorDataset(images[20:], torch.arange(5))


def test_datasets_of_the_users_own() -> None:
    data = opened(f"{__name__}:make_sets", validation=0.2, augment="none")
    held_out, trained = numbers(data.validation), numbers(data.train)
    assert (len(held_out), data.info.validation_size) == (4, 4) and sorted(held_out + trained) == list(range(20))
