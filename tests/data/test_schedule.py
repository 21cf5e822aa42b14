import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import DataSettings, Target
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


@pytest.mark.parametrize(
    ("settings", "world", "text"),
    [
        ({"batch_size": 128}, 3, "data.batch_size must be divisible by the 3 processes that share a batch, got 128"),
        ({"batch_size": 32}, 32, "24 training examples cannot be shared by 32 processes"),
    ],
)
def test_epochs_that_cannot_be_divided_are_errors(settings, world, text):
    with pytest.raises(InputError, match=text):
        Shuffled(24, DataSettings(**settings), Target(CPU, 0, world))


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
        ({"validation": 0.05}, 2, "hold out at least 2 and"),
    ],
)
def test_more_examples_than_there_are_cannot_be_chosen(settings, world, text):
    with pytest.raises(InputError, match=text):
        train_val_split((20, 5), DataSettings(**settings), world)
