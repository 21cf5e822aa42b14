import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import DataSettings, Target
from depl0.app.data.schedule import InOrder, Shuffled, limited
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


@given(st.integers(24, 200), st.sampled_from([1, 2, 3]), st.integers(0, 50), st.data())
def test_short_epochs_share_one_pass_over_the_images(size, world, number, data):
    images = data.draw(st.integers(6, size))
    settings = DataSettings(batch_size=6, epoch_images=images)
    ranks = [Shuffled(size, settings, Target(CPU, rank, world)) for rank in range(world)]
    steps = images // 6
    assert [rank.steps for rank in ranks] == [steps] * world
    in_pass = size // (6 * steps)
    epochs = range(number * in_pass, (number + 1) * in_pass)
    taken = np.concatenate([np.concatenate(rank.epoch(epoch)) for rank in ranks for epoch in epochs])
    assert len(taken) == len(np.unique(taken)) == in_pass * 6 * steps


@pytest.mark.parametrize("images", [5, 25])
def test_an_epoch_is_at_least_a_batch_and_at_most_all_images(images):
    with pytest.raises(InputError, match="'epoch_images' must be at least 6, one batch, and at most 24"):
        Shuffled(24, DataSettings(batch_size=6, epoch_images=images), Target(CPU, 0, 1))


def test_orders_are_random():
    (schedule,) = schedules(Shuffled, 1000, 1000, 1)
    places = np.stack([schedule.epoch(epoch)[0] for epoch in range(200)])
    assert abs(places.mean(axis=0) - 499.5).max() < 6 * 288.7 / 200**0.5
    assert len({row.tobytes() for row in places}) == 200


@given(sizes, st.data())
def test_limits_nest(size, data):
    more = data.draw(st.integers(1, size - 1))
    fewer = data.draw(st.integers(1, more))
    assert set(limited(size, fewer)) <= set(limited(size, more)) < set(range(size))
    assert len(limited(size, more)) == more
    assert limited(size, 0) is None
    assert limited(size, size) is None
