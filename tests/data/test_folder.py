import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from depl0._util.optional import import_torchvision
from depl0.app.data import DataSettings, open_data
from depl0.app.data.readers import Transform, own_size
from depl0.errors import DataError, InputError
from tests.support.layouts import write_folder


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_classes_are_the_folders_in_order(tmp_path):
    data = open_data(f"folder:{write_folder(tmp_path, ('cat', 'ant', 'bee'))}", DataSettings(eval_batch_size=4))
    assert data.info.class_names == ("ant", "bee", "cat")
    assert data.info.image_shape == (3, 224, 224)
    assert (data.info.train_size, data.info.test_size) == (15, 9)
    assert torch.cat([labels for _, labels in data.test.epoch(0)]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


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


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (31, 500), (20, 20)])
@pytest.mark.parametrize(("side", "share", "name"), [(224, 224 / 256, "bilinear"), (36, 0.9, "bicubic")])
def test_test_images_are_those_of_torchvision(size, side, share, name):
    transforms = import_torchvision().transforms
    image, interpolation = picture(*size), transforms.InterpolationMode(name)
    resize = transforms.Resize(round(side / share), interpolation=interpolation)
    reference = transforms.Compose([resize, transforms.CenterCrop(side)])
    found = Transform((side, side), share, name).centre(image)
    assert np.array_equal(np.array(found), np.array(reference(image)))


def test_images_of_the_wanted_size_stay_as_they_are(tmp_path):
    image = picture(80, 48)
    assert Transform((48, 80)).centre(image) is image
    for part in ("train", "val"):
        (tmp_path / part / "ant").mkdir(parents=True)
        image.save(tmp_path / part / "ant" / "0.png")
    assert own_size(tmp_path) == (48, 80)
    picture(80, 50).save(tmp_path / "train" / "ant" / "1.png")
    assert own_size(tmp_path) is None


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (shutil.rmtree, "must be a folder that holds the folders train and val (or test)."),
        (
            lambda root: (root / "val/bee").rename(root / "val/wasp"),
            "train and val must have the same class folders; only one of them has bee, wasp.",
        ),
        (
            lambda root: shutil.rmtree(root / "train/ant") or (root / "train/ant").mkdir(),
            "for the classes ant",
        ),
        (
            lambda root: [shutil.rmtree(root / f"val/{name}") for name in ("ant", "bee")],
            "must have one folder per class, with images in each: Couldn't find any class folder",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, break_it, text):
    break_it(write_folder(tmp_path / "images"))
    with pytest.raises(DataError, match=re.escape(text)):
        open_data(f"folder:{tmp_path / 'images'}")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"", None, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"])
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
    with pytest.raises(InputError, match=r"data\.augment must be imagenet or none for folder, got 'crop' instead"):
        open_data(f"folder:{write_folder(tmp_path)}", DataSettings(augment="crop"))
