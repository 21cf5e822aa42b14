"""Training images that are held out for choices: the same for every seed, unchanged, and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from depl0.app.data import Data, DataSettings, open_data
from depl0.app.data.base import Batches

TWENTY = """
import torch
def make():
    images = torch.arange(25, dtype=torch.uint8).view(25, 1, 1, 1).expand(25, 1, 4, 4).contiguous()
    return (images[:20], torch.arange(20) % 5), (images[20:], torch.arange(5))
"""
PLAIN = DataSettings(batch_size=4, mean=(0.0,), std=(1.0,), eval_batch_size=3)


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
    again = opened(twenty, validation=0.2, seed=1)
    assert numbers(again.validation) == held_out


def test_processes_share_it(twenty: str) -> None:
    whole = numbers(opened(twenty, validation=0.2).validation)
    assert [n for rank in (0, 1) for n in numbers(opened(twenty, rank, 2, validation=0.2).validation)] == whole
