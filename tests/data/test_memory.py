import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import DataSettings, Target, open_data
from depl0.app.data.batches import Source, crop_and_flip, open_source
from depl0.errors import InputError


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


def test_small_images_are_not_for_imagenet_augmentation():
    with pytest.raises(InputError, match=r"data\.augment must be none or crop-flip or crop for digits, got 'imagenet'"):
        open_data("digits", DataSettings(augment="imagenet"))


def test_resizing_keeps_even_images_even():
    images = torch.arange(0, 250, 10, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 5, 7).contiguous()
    part = (images, torch.zeros(25).long())
    settings = DataSettings(eval_batch_size=25, image_size=(9, 8), mean=(0, 0, 0), std=(1 / 255,) * 3)
    data = open_source(Source("even", part, part), settings, Target(torch.device("cpu")))
    ((resized, _),) = data.test.epoch(0)
    assert torch.equal(resized, images[:, :, :1, :1].expand(-1, -1, 9, 8).float())
