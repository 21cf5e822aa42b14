"""Which examples each batch holds: each once, shared by processes, and none that is held out for choices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import Batches, Data, DataSettings, Target, open_data
from depl0.app.data.schedule import InOrder, Shuffled, train_val_split
from depl0.errors import InputError

CPU = torch.device("cpu")
sizes = st.integers(4, 200)
worlds = st.integers(1, 4)


def schedules(kind, size, share, world, seed=0):
    settings = DataSettings(batch_size=share * world, eval_batch_size=share, seed=seed)
    return [kind(size, settings, Target(CPU, rank, world)) for rank in range(world)]


@given(sizes, st.integers(1, 40), worlds, st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_a_training_epoch_takes_each_image_at_most_once(size, share, world, seed, epoch):
    ranks = schedules(Shuffled, size, share, world, seed)
    taken = np.concatenate([np.concatenate(rank.epoch(epoch)) for rank in ranks])
    assert len(np.unique(taken)) == len(taken) == sum(rank.size for rank in ranks)
    assert set(taken) <= set(range(size))
    batch = share * world
    assert size - len(taken) < (batch if batch <= size else world)
    assert {len(step) for rank in ranks for step in rank.epoch(epoch)} == {ranks[0].size // ranks[0].steps}


@given(st.integers(12, 200), st.sampled_from([2, 3, 4]), st.integers(0, 100))
def test_the_order_does_not_depend_on_the_number_of_ranks(size, world, epoch):
    (alone,) = schedules(Shuffled, size, 12, 1)
    ranks = schedules(Shuffled, size, 12 // world, world)
    for step, whole in enumerate(alone.epoch(epoch)):
        assert np.array_equal(np.concatenate([rank.epoch(epoch)[step] for rank in ranks]), whole)


@given(st.integers(0, 200), st.integers(1, 40), worlds)
def test_a_test_epoch_takes_each_image_once_and_in_order(size, share, world):
    ranks = schedules(InOrder, size, share, world)
    taken = [number for rank in ranks for step in rank.epoch(0) for number in step]
    assert taken == list(range(size))
    for rank in ranks:
        assert len(rank.epoch(0)) == rank.steps
        assert sum(map(len, rank.epoch(0))) == rank.size
        assert all(0 < len(step) <= share for step in rank.epoch(0))
    assert max(rank.size for rank in ranks) - min(rank.size for rank in ranks) <= 1


@given(sizes, st.data())
def test_limits_and_held_out_examples_nest(size, data):
    more = data.draw(st.integers(2, size - 1))
    fewer = data.draw(st.integers(1, more))
    limits = [DataSettings(limit_train=limit, limit_test=limit) for limit in (fewer, more, 0)]
    chosen = [train_val_split((size, size), settings) for settings in limits]
    for place in (0, 2):
        assert set(chosen[0][place]) <= set(chosen[1][place]) < set(chosen[2][place]) == set(range(size))
        assert len(chosen[1][place]) == more
    assert [each[1] for each in chosen] == [None] * 3
    few, half = (train_val_split((size, size), DataSettings(validation=share)) for share in (0.26, 0.5))
    assert set(few[1]) <= set(half[1]) and set(half[0]) | set(half[1]) == set(range(size))
    assert len(half[1]) == round(0.5 * size)


@pytest.mark.parametrize(
    ("settings", "world", "text"),
    [
        ({"limit_train": 21}, 1, "data.limit_train must be at most 20, the number of train examples, got 21 instead"),
        ({"validation": 0.01}, 1, "hold out at least 1 and fewer than all of the 20 .*, but 0.01 holds out 0"),
    ],
)
def test_more_examples_than_there_are_cannot_be_chosen(settings, world, text):
    with pytest.raises(InputError, match=text):
        train_val_split((20, 5), DataSettings(**settings), world)


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
