import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depl0.app.data import DataSettings, Target
from depl0.app.data.memory import Arrays, crop_and_flip, open_arrays
from depl0.errors import InputError

CPU = Target(torch.device("cpu"))


def random_images(count, channels=3, height=8, width=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, channels, height, width), dtype=torch.uint8, generator=rng)


def arrays(**changes):
    images = random_images(40)
    labels = torch.arange(40) % 5
    fields = {
        "name": "small",
        "train": (images[:30], labels[:30]),
        "test": (images[30:], labels[30:]),
        "num_classes": 5,
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.25, 0.3),
        "class_names": None,
        "augment": "crop-flip",
    }
    return Arrays(**{**fields, **changes})


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
    images = random_images(count, channels, height, width)
    starts = st.lists(st.integers(0, 2 * padding), min_size=count, max_size=count)
    top, left = data.draw(starts), data.draw(starts)
    flip = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = crop_and_flip(images, torch.tensor(top), torch.tensor(left), torch.tensor(flip), padding)
    wanted = [crop_one(*one, padding) for one in zip(images, top, left, flip, strict=True)]
    assert torch.equal(found, torch.stack(wanted))
    assert found.is_contiguous()


def test_small_images_are_not_for_imagenet_augmentation():
    with pytest.raises(InputError, match=r"data\.augment must be crop-flip, crop or none for small, got 'imagenet'"):
        open_arrays(arrays(), DataSettings(augment="imagenet"), CPU)


def test_resizing_keeps_even_images_even():
    images = torch.arange(0, 250, 10, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 5, 7).contiguous()
    plain = DataSettings(eval_batch_size=25, image_size=(9, 8), augment="none", mean=(0, 0, 0), std=(1 / 255,) * 3)
    data = open_arrays(
        arrays(test=(images, torch.zeros(25).long()), train=(images, torch.zeros(25).long())), plain, CPU
    )
    ((resized, _),) = data.test.epoch(0)
    assert torch.equal(resized, images[:, :, :1, :1].expand(-1, -1, 9, 8).float())
