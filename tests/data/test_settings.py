import re

import pytest
import torch

from depl0.app.data import DataSettings, Target, open_data
from depl0.errors import InputError

LIST = "a non-empty list in which every entry is"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("batch_size", 0, "'batch_size' must be an integer of at least 1, got 0 instead."),
        ("batch_size", 2.5, "'batch_size' must be an integer of at least 1, got 2.5 instead."),
        ("batch_size", True, "'batch_size' must be an integer of at least 1, got True instead."),
        ("eval_batch_size", -1, "'eval_batch_size' must be an integer of at least 1, got -1 instead."),
        ("crop_padding", -1, "'crop_padding' must be an integer of at least 0, got -1 instead."),
        ("image_size", 0, "'image_size' must be an integer of at least 1, or a list of 2 in which every entry is"),
        ("limit_train", -1, "'limit_train' must be an integer of at least 0, got -1 instead."),
        ("workers", "2", "'workers' must be an integer of at least 0, or left out, got '2' instead."),
        ("seed", -1, "'seed' must be an integer from 0 to 4294967295, got -1 instead."),
        ("seed", 2**32, "'seed' must be an integer from 0 to 4294967295, got 4294967296 instead."),
        ("mean", (), f"'mean' must be {LIST} a finite number, or left out, got () instead."),
        ("mean", 0.5, f"'mean' must be {LIST} a finite number, or left out, got 0.5 instead."),
        ("mean", (float("nan"),), f"'mean' must be {LIST} a finite number, or left out, got (nan,) instead."),
        ("std", (0.5, 0), f"'std' must be {LIST} a number above 0, or left out, got (0.5, 0) instead."),
        ("std", ("a",), f"'std' must be {LIST} a number above 0, or left out, got ('a',) instead."),
        ("augment", "crop_flip", "'augment' must be one of 'default', 'none', 'crop', 'crop-flip', 'imagenet', got"),
        ("augment", None, "got None instead."),
    ],
)
def test_wrong_values_are_refused_by_name(field, value, text):
    with pytest.raises(InputError, match=re.escape(text)):
        DataSettings(**{field: value})


def test_the_nearest_augmentation_is_suggested():
    with pytest.raises(InputError, match="hint: did you mean crop-flip"):
        DataSettings(augment="cropflip")


def test_lists_become_tuples():
    settings = DataSettings(mean=[0, 0.5], std=[1, 2])
    assert (settings.mean, settings.std) == ((0.0, 0.5), (1.0, 2.0))
    assert hash(settings) == hash(DataSettings(mean=(0, 0.5), std=(1, 2)))


@pytest.mark.parametrize(
    ("rank", "world", "text"),
    [
        (0, 0, "'world' must be a whole number of at least 1, got 0"),
        (2, 2, "'rank' must be a whole number from 0 to 1 (world is 2), got 2"),
        (-1, 2, "got -1 instead"),
    ],
)
def test_a_rank_must_be_one_of_the_world(rank, world, text):
    with pytest.raises(InputError, match=re.escape(text)):
        Target(torch.device("cpu"), rank, world)


def test_a_batch_must_be_shared_equally():
    with pytest.raises(InputError, match=r"'batch_size' must be divisible by the 3 processes.* got 128") as error:
        open_data("digits", DataSettings(), world=3)
    assert error.value.hint == "use 126 or 129."


def test_every_process_needs_an_image():
    with pytest.raises(InputError, match="2 training images cannot be shared by 4 processes"):
        open_data("digits", DataSettings(limit_train=2), world=4)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(InputError, match=f"The device {device!r} cannot be used: "):
        open_data("digits", device=device)
