"""Targets that are no class numbers: numbers, label maps, dicts and tuples of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from depl0.app.data import Data, DataSettings, open_data
from depl0.app.data.targets import read_targets
from depl0.errors import DataError, InputError

OWN = """
import numpy, torch
rng = torch.Generator().manual_seed(0)
images = torch.randint(256, (40, 1, 6, 5), dtype=torch.uint8, generator=rng)
images[:, 0, 0, 0] = torch.arange(40)  # every image says which one it is
number = torch.arange(40)
maps = (number.view(-1, 1, 1) % 3).expand(40, 6, 5).to(torch.uint8).clone()
maps[:, 0] = 255

def halves(targets, cut=lambda t, part: t[part]):
    return (images[:30], cut(targets, slice(0, 30))), (images[30:], cut(targets, slice(30, 40)))

def of_dict(t, part): return {key: value[part] for key, value in t.items()}
def of_tuple(t, part): return tuple(value[part] for value in t)

def scalars(): return halves(number.numpy() / 2.0)
def vectors(): return halves(torch.stack([number, -number], 1).float())
def label_maps(): return halves(maps)
def several(): return halves({"number": number, "maps": maps, "box": numpy.ones((40, 2, 4)) * 3}, of_dict)
def pair(): return halves((number.float(), maps), of_tuple)
def classes(): return halves(number % 4)
def plain_tuple(): return (images[:3], (0, 1, 2)), (images[:2], (0, 1))

def short(): return (images[:30], number[:29].float()), (images[30:], number[30:].float())
def short_maps(): return (images[:30], {"a": maps[:30], "b": maps[:3]}), (images[30:], maps[30:])
def constant(): return (images[:30], torch.tensor(1.0)), (images[30:], number[30:].float())
def nothing(): return (images[:30], {}), (images[30:], {})
def holes(): return halves(torch.where(number == 7, torch.nan, number.float()))
def unlike(): return (images[:30], number[:30].float()), (images[30:], torch.zeros(10, 2))
def mixed(): return (images[:30], number[:30].float()), (images[30:], number[30:])
def words(): return halves({"a": ["x"] * 40}, of_dict)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "own.py"
    path.write_text(OWN)
    return path


def opened(own: Path, name: str, rank: int = 0, world: int = 1, **settings: Any) -> Data:
    plain = {"batch_size": 6, "eval_batch_size": 4, "mean": (0.0,), "std": (1 / 255,)}
    return open_data(f"{own}:{name}", DataSettings(**{**plain, **settings}), rank=rank, world=world)


def numbers_of(images: Tensor) -> Tensor:
    return images[:, 0, 0, 0].round().long()


def check_scalars(which: Tensor, targets: Tensor) -> None:
    assert targets.dtype == torch.float32
    assert torch.equal(targets, which / 2)


def check_vectors(which: Tensor, targets: Tensor) -> None:
    assert torch.equal(targets, torch.stack([which, -which], 1).float())


def check_maps(which: Tensor, targets: Tensor) -> None:
    assert targets.dtype == torch.int64 and targets.shape[1:] == (6, 5)
    assert torch.equal(targets[:, 1, 0], which % 3)
    assert bool((targets[:, 0] == 255).all())


def check_several(which: Tensor, targets: dict[str, Tensor]) -> None:
    assert list(targets) == ["number", "maps", "box"]
    assert torch.equal(targets["number"], which)
    check_maps(which, targets["maps"])
    assert targets["box"].dtype == torch.float32 and targets["box"].shape == (len(which), 2, 4)


def check_pair(which: Tensor, targets: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(targets[0], which.float())
    check_maps(which, targets[1])


CHECKS = {
    "scalars": check_scalars,
    "vectors": check_vectors,
    "label_maps": check_maps,
    "several": check_several,
    "pair": check_pair,
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("world", [1, 2])
def test_targets_stay_with_their_images(own: Path, name: str, world: int) -> None:
    seen = []
    for rank in range(world):
        data = opened(own, name, rank, world)
        for batches in (data.train, data.test):
            for images, targets in batches.epoch(1):
                which = numbers_of(images)
                CHECKS[name](which, targets)
                seen += which.tolist()
    assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("name", CHECKS)
def test_an_epoch_can_be_begun_later_and_with_fewer_images(own: Path, name: str) -> None:
    data = opened(own, name, limit_train=12)
    whole, rest = list(data.train.epoch(2)), list(data.train.epoch(2, first_step=1))
    assert (len(whole), len(rest)) == (2, 1)
    CHECKS[name](numbers_of(rest[0][0]), rest[0][1])
    assert torch.equal(whole[1][0], rest[0][0])


@pytest.mark.parametrize(
    ("name", "classes", "outputs", "shape", "labels"),
    [
        ("classes", 4, 4, (), None),
        ("plain_tuple", 3, 3, (), None),
        ("scalars", None, 1, (), None),
        ("vectors", None, 2, (2,), None),
        ("label_maps", None, None, (6, 5), (0, 1, 2, 255)),
        ("several", None, None, None, None),
        ("pair", None, None, None, None),
    ],
)
def test_what_is_known_of_them(own: Path, name: str, classes: Any, outputs: Any, shape: Any, labels: Any) -> None:
    info = opened(own, name, batch_size=2).info
    assert (info.num_classes, info.num_outputs, info.target_shape, info.labels) == (classes, outputs, shape, labels)
    said = info.description()
    assert (said["num_classes"], said["num_outputs"]) == (classes, outputs)
    assert said["target_shape"] == (None if shape is None else list(shape))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short", "training images of {path}:short must have one target each, got 30 images and 29 targets."),
        ("short_maps", "must have one target each, got 30 images and 3 targets."),
        ("constant", "must have one target each, got 30 images and one number."),
        ("nothing", "The targets of the training images of {path}:nothing must be at least one tensor, got {{}}"),
        ("holes", "training images of {path}:holes must be finite, but that of image 7 is not."),
        ("unlike", "must have one form, got numbers of shape () and numbers of shape (2,) for an image instead."),
        ("mixed", "must have one form, got numbers of shape () and whole numbers of shape () for an image instead."),
        ("words", "of tensors or arrays: "),
    ],
)
def test_wrong_targets_are_refused(own: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text.format(path=own))):
        opened(own, name)


def test_images_are_not_moved_away_from_their_label_maps(own: Path) -> None:
    with pytest.raises(InputError, match=r"'augment' must be 'none' for .*, whose targets have places in the image"):
        opened(own, "label_maps", augment="crop-flip")
    with pytest.raises(InputError, match=r"'image_size' must be left out for .*:several, .*got 8 instead"):
        opened(own, "several", image_size=8)
    assert opened(own, "scalars", augment="crop", image_size=8).info.image_shape == (1, 8, 8)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_unsigned_labels_are_whole_numbers_like_others(kind: type) -> None:
    read = read_targets(np.array([0, 1, 2], dtype=kind), lambda error: DataError(str(error)))
    assert isinstance(read, torch.Tensor) and read.dtype == torch.int64 and read.tolist() == [0, 1, 2]
