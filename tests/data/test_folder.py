import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from depl0.app.data import DataSettings, open_data
from depl0.app.data.folder import FORMATS, Resizing, own_size, random_part
from depl0.errors import DataError, InputError
from tests.support.layouts import write_folder
from tests.torchvision_shim import import_torchvision


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_classes_are_the_folders_in_order(tmp_path):
    data = open_data(f"folder:{write_folder(tmp_path, ('cat', 'ant', 'bee'))}", DataSettings(eval_batch_size=4))
    assert data.info.class_names == ("ant", "bee", "cat")
    assert data.info.image_shape == (3, 224, 224)
    assert (data.info.train_size, data.info.test_size) == (15, 9)
    assert torch.cat([labels for _, labels in data.test.epoch(0)]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_the_second_part_may_be_called_test(tmp_path):
    (write_folder(tmp_path) / "val").rename(tmp_path / "test")
    assert open_data(f"folder:{tmp_path}").info.test_size == 6


def test_workers_give_the_same_batches(tmp_path):
    write_folder(tmp_path)
    here, there = (
        open_data(f"folder:{tmp_path}", DataSettings(batch_size=5, image_size=24, workers=workers))
        for workers in (0, 2)
    )
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for first_step in (0, 1):
        for ours, theirs in zip(here.train.epoch(1, first_step), there.train.epoch(1, first_step), strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_each_image_is_cropped_anew_in_each_epoch(tmp_path):
    write_folder(tmp_path, train=1, test=1)
    for number in range(1, 20):
        shutil.copy(tmp_path / "train/ant/0.png", tmp_path / f"train/ant/{number}.png")
    for seed in (0, 1):
        train = open_data(f"folder:{tmp_path}", DataSettings(batch_size=21, image_size=16, seed=seed)).train
        crops = {image.numpy().tobytes() for epoch in range(3) for image in next(train.epoch(epoch))[0]}
        assert len(crops) == 3 * 21


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (256, 256), (1000, 257), (31, 500), (20, 20)])
@pytest.mark.parametrize(("side", "share", "name"), [(224, 224 / 256, "bilinear"), (36, 0.9, "bicubic")])
def test_test_images_are_those_of_torchvision(size, side, share, name):
    transforms = import_torchvision().transforms
    image, interpolation = picture(*size), transforms.InterpolationMode(name)
    resize = transforms.Resize(round(side / share), interpolation=interpolation)
    reference = transforms.Compose([resize, transforms.CenterCrop(side)])
    found = Resizing((side, side), share, name).centre_crop(image)
    assert np.array_equal(np.array(found), np.array(reference(image)))


def test_images_of_the_wanted_size_stay_as_they_are(tmp_path):
    image = picture(80, 48)
    assert Resizing((48, 80)).centre_crop(image) is image
    for part in ("train", "val"):
        (tmp_path / part / "ant").mkdir(parents=True)
        image.save(tmp_path / part / "ant" / "0.png")
    assert own_size(tmp_path) == (48, 80)
    picture(80, 50).save(tmp_path / "train" / "ant" / "1.png")
    assert own_size(tmp_path) is None


class Fixed(np.random.Generator):
    """Random numbers that are given in advance."""

    def __init__(self, uniform, integers):
        super().__init__(np.random.PCG64(0))
        self.given = list(uniform), list(integers)

    def uniform(self, *bounds):
        return self.given[0].pop(0)

    def integers(self, *bounds, **_):
        return self.given[1].pop(0)


@pytest.mark.parametrize("flip", [0, 1])
def test_a_given_part_is_cut_out_resized_and_mirrored(flip):
    functional = import_torchvision().transforms.functional
    image = picture(60, 40)
    rng = Fixed([0.25, 0.0], [7, 3, flip])  # a quarter of the area, as wide as high, at left 7 and top 3
    side = round((60 * 40 / 4) ** 0.5)
    reference = functional.resized_crop(image, 3, 7, side, side, [32, 32])
    reference = functional.hflip(reference) if flip else reference
    assert np.array_equal(np.array(Resizing((32, 32)).random_crop(image, rng)), np.array(reference))


@pytest.mark.parametrize("size", [(300, 400), (50, 50), (1, 1), (500, 400)])
def test_random_parts_are_within_their_bounds(size):
    width, height = size
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(300):
        left, top, right, bottom = random_part(width, height, rng)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        areas.append((right - left) * (bottom - top) / (width * height))
        if min(size) > 40:
            assert 0.7 < (right - left) / (bottom - top) < 1.42
            assert areas[-1] > 0.06
    if min(size) > 40:
        assert min(areas) < 0.15
        assert max(areas) > 0.8


@pytest.mark.parametrize(
    ("size", "part"), [((1000, 30), (480, 0, 520, 30)), ((30, 1000), (0, 480, 30, 520)), ((1000, 1), (499, 0, 500, 1))]
)
def test_the_middle_is_taken_of_images_that_are_too_narrow(size, part):
    rng = Fixed([1.0, 0.0] * 10, [])
    assert random_part(*size, rng) == part


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (shutil.rmtree, "must be a folder that holds the folders train and val (or test)."),
        (lambda root: shutil.rmtree(root / "val"), "must be a folder that holds the folders train and val (or test)."),
        (
            lambda root: (root / "val/bee").rename(root / "val/wasp"),
            "train and val must have the same class folders; only one of them has bee, wasp.",
        ),
        (lambda root: shutil.rmtree(root / "train/ant") or (root / "train/ant").mkdir(), "at least one image, but has"),
        (
            lambda root: [shutil.rmtree(root / f"val/{name}") for name in ("ant", "bee")],
            "must have one folder per class, but has none",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, break_it, text):
    break_it(write_folder(tmp_path / "images"))
    with pytest.raises(DataError, match=re.escape(text)):
        open_data(f"folder:{tmp_path / 'images'}")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"not an image", b"", None, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"])
def test_a_damaged_image_is_named_and_no_program_is_started(tmp_path, monkeypatch, workers, content):
    path = write_folder(tmp_path) / "val/bee/1.JPEG"
    path.write_bytes(path.read_bytes()[:-400] if content is None else content)
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: started.append(words))
    test = open_data(f"folder:{tmp_path}", DataSettings(image_size=16, workers=workers)).test
    with pytest.raises(DataError) as error:
        list(test.epoch(0))
    assert error.value.message.startswith(f"{path} cannot be decoded as an image: ")
    assert "replace it" in error.value.hint and "Traceback" not in str(error.value)
    assert not started


def test_other_augmentations_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"data\.augment must be imagenet or none for folder:, got 'crop' instead"):
        open_data(f"folder:{write_folder(tmp_path)}", DataSettings(augment="crop"))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_read_whatever_the_name(tmp_path, form):
    write_folder(tmp_path)
    picture(20, 20).save(tmp_path / "val/ant/0.png", format=form)
    data = open_data(f"folder:{tmp_path}", DataSettings(image_size=8, limit_test=0))
    images = torch.cat([images for images, _ in data.test.epoch(0)])
    assert images.shape == (6, 3, 8, 8)
