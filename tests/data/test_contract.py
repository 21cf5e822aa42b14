"""What holds for every data set: one suite over all of them."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import Batches, Data, DataSettings, Target, open_data
from depl0.app.data.batches import Source, crop_and_flip, open_source
from depl0.errors import InputError
from tests.support.layouts import write_cifar10, write_folder, write_mnist

SETTINGS = DataSettings(batch_size=6, eval_batch_size=4, image_size=16, seed=3)


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_cifar10(root)
    write_mnist(root)
    write_folder(root / "images")
    return {
        "digits": "digits",
        "mnist": f"mnist:{root}",
        "cifar10": f"cifar10:{root}",
        "folder": f"folder:{root / 'images'}",
    }


def test_plain_images_are_the_training_images_without_augmentation(specs):
    for name, augment in (("cifar10", "crop-flip"), ("folder", "imagenet")):
        data = open_data(specs[name], SETTINGS.replace(augment=augment))
        plain = open_data(specs[name], SETTINGS.replace(augment="none"))
        assert same(collect(data.train.plain(), 2), collect(plain.train, 2))
        assert not same(collect(data.train, 2), collect(plain.train, 2))


SETS = ("digits", "mnist", "cifar10", "folder")


@pytest.fixture(params=SETS)
def spec(request, specs):
    return specs[request.param]


def collect(batches, *arguments):
    return [(images.clone(), labels.clone()) for images, labels in batches.epoch(*arguments)]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(ours, theirs, strict=True)
    )


def test_batches_are_what_the_info_says(spec):
    data = open_data(spec, SETTINGS)
    assert isinstance(data, Data)
    assert isinstance(data.train, Batches)
    info = data.info
    for batches in (data.train, data.test):
        found = collect(batches, 0)
        assert len(found) == batches.steps
        assert sum(len(labels) for _, labels in found) == batches.size
        for images, labels in found:
            assert images.dtype == torch.float32
            assert labels.dtype == torch.int64
            assert images.is_contiguous()
            assert images.shape == (len(labels), *info.image_shape)
            assert labels.min() >= 0
            assert labels.max() < info.num_classes
    assert info.image_shape[1:] == (16, 16)
    assert all(len(labels) == 6 for _, labels in data.train.epoch(0))
    assert data.train.size == info.train_size - info.train_size % 6
    assert data.test.size == info.test_size
    assert info.class_names is None or len(info.class_names) == info.num_classes
    assert len(info.mean) == len(info.std) == info.image_shape[0]


@pytest.mark.parametrize("first_step", [1, 2])
def test_an_epoch_can_be_begun_in_the_middle(spec, first_step):
    data = open_data(spec, SETTINGS)
    for batches in (data.train, data.test):
        first_step = min(first_step, batches.steps)
        assert same(collect(batches, 2, first_step), collect(batches, 2)[first_step:])
        assert collect(batches, 2, batches.steps) == []


def test_ranks_share_every_batch(spec):
    world = 3
    alone = open_data(spec, SETTINGS)
    ranks = [open_data(spec, SETTINGS, rank=rank, world=world) for rank in range(world)]
    shares = [collect(rank.train, 4) for rank in ranks]
    for step, (images, labels) in enumerate(collect(alone.train, 4)):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), images)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), labels)
    assert {rank.train.steps for rank in ranks} == {alone.train.steps}
    assert sum(rank.train.size for rank in ranks) == alone.train.size

    whole = [torch.cat(parts) for parts in zip(*collect(alone.test, 0), strict=True)]
    tests = [batch for rank in ranks for batch in collect(rank.test, 0)]
    parts = [torch.cat(parts) for parts in zip(*tests, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    assert sum(rank.test.size for rank in ranks) == alone.test.size == alone.info.test_size
    assert all(rank.info == alone.info for rank in ranks)


def test_global_random_numbers_are_left_alone(spec):
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    torch.manual_seed(5)
    before = states()
    data = open_data(spec, SETTINGS)
    first = collect(data.train, 0)
    collect(data.test, 0)
    assert states() == before
    torch.manual_seed(6)
    np.random.seed(6)
    random.seed(6)
    assert same(collect(data.train, 0), first)


def test_normalisation_is_a_setting(spec):
    channels = open_data(spec, SETTINGS).info.image_shape[0]
    plain = DataSettings(
        batch_size=6, eval_batch_size=4, image_size=16, seed=3, mean=[0] * channels, std=(1.0,) * channels
    )
    own, raw = open_data(spec, SETTINGS), open_data(spec, plain)
    for (normalised, _), (pixels, _) in zip(collect(own.train, 0), collect(raw.train, 0), strict=True):
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (own.info.mean, own.info.std))
        torch.testing.assert_close(normalised, (pixels - mean) / std, rtol=0, atol=2e-6)
    assert raw.info.std == (1.0,) * channels
    with pytest.raises(InputError, match=f"data.std must have {channels} numbers, one per channel.*, got 5 instead"):
        open_data(spec, DataSettings(std=(1, 1, 1, 1, 1)))


def crop_one(image, top, left, flip, padding):
    """Crop and mirror one image the plain way, pixel by pixel."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for channel in range(channels):
        for y in range(height):
            for x in range(width):
                column = width - 1 - x if flip else x
                from_y, from_x = y + top - padding, column + left - padding
                if 0 <= from_y < height and 0 <= from_x < width:
                    result[channel, y, x] = image[channel, from_y, from_x]
    return result


@given(st.data(), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.integers(1, 4))
def test_cropping_whole_batches_is_cropping_each_image(data, channels, height, width, padding, count):
    images = torch.randint(256, (count, channels, height, width), dtype=torch.uint8)
    starts = st.lists(st.integers(0, 2 * padding), min_size=count, max_size=count)
    top, left = data.draw(starts), data.draw(starts)
    flip = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    found = crop_and_flip(images, torch.tensor([top, left, flip]), padding)
    wanted = [crop_one(*one, padding) for one in zip(images, top, left, flip, strict=True)]
    assert torch.equal(found, torch.stack(wanted))


def test_resizing_keeps_even_images_even():
    images = torch.arange(0, 250, 10, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 5, 7).contiguous()
    part = (images, torch.zeros(25).long())
    settings = DataSettings(eval_batch_size=25, image_size=(9, 8), mean=(0, 0, 0), std=(1 / 255,) * 3)
    data = open_source(Source("even", part, part), settings, Target(torch.device("cpu")))
    ((resized, _),) = data.test.epoch(0)
    assert torch.equal(resized, images[:, :, :1, :1].expand(-1, -1, 9, 8).float())
