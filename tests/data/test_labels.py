"""Labels of one's own data: refused in words, before any memory is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from depl0.app.data import Data, DataInfo, DataSettings, open_data
from depl0.app.data.base import Batches
from depl0.errors import DataError
from tests.networks.tiny import run, tiny_recipe
from tests.support.bounds import bounded
from tests.support.layouts import write_folder

pytestmark = pytest.mark.usefixtures("remembered_plans")


class Given(Batches):
    """One batch of given labels."""

    def __init__(self, labels: Any) -> None:
        super().__init__(size=len(labels), steps=1)
        self.labels = labels

    def batches_from(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, Any]]:
        yield torch.zeros(4, 1, 6, 6), self.labels


GOOD = torch.tensor([0, 1, 2, 3])
LABELS: dict[str, Any] = {
    "good": GOOD,
    "too_large": torch.tensor([0, 1, 2, 4]),
    "huge": torch.tensor([0, 1, 2, 10**9]),
    "negative": torch.tensor([0, -1, 2, 3]),
    "floats": torch.tensor([0.0, 1.0, 2.0, 3.0]),
    "wide": torch.zeros(4, 2, dtype=torch.int64),
    "few": torch.tensor([0, 1]),
    "text": ["a", "b", "c", "d"],
    "narrow": GOOD.to(torch.uint8),
    "unsigned": GOOD.to(torch.uint16),
}
chosen = "good"
num_classes = 4


def make_data() -> Data:
    info = DataInfo("own", num_classes, None, (1, 6, 6), 4, 4)
    return Data(info, train=Given(LABELS[chosen]), test=Given(GOOD))


def make_arrays() -> Any:
    images = torch.zeros(4, 1, 6, 6, dtype=torch.uint8)
    return (images, LABELS[chosen]), (images, GOOD)


@pytest.mark.parametrize("name", ["good", "narrow", "unsigned"])
def test_whole_numbers_of_any_size_are_labels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"{__name__}.chosen", name)
    (_, labels), *_ = open_data(f"{__name__}:make_data").train.epoch(0)
    assert labels.dtype == torch.int64 and labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("too_large", "must be from 0 to 3, got 4 in batch 0 of epoch 0 instead"),
        ("huge", "must be from 0 to 3, got 1000000000 in batch 0"),
        ("negative", "must be from 0 to 3, got -1 in batch 0"),
        ("floats", r"must be whole numbers of shape \(number,\), got float32 of shape \(4,\)"),
        ("wide", r"must be whole numbers of shape \(number,\), got int64 of shape \(4, 2\)"),
        ("few", r"must be as many as images \(4\), got 2 in batch 0"),
        ("text", "must be a tensor, got list in batch 0"),
    ],
)
def test_other_labels_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setattr(f"{__name__}.chosen", name)
    data = open_data(f"{__name__}:make_data")
    with pytest.raises(DataError, match=f"labels of the training images of {__name__}:make_data {text}") as caught:
        list(data.train.epoch(0))
    assert "info.num_classes" in str(caught.value)
    list(data.test.epoch(0))


def test_a_run_ends_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{__name__}.chosen", "too_large")
    with pytest.raises(DataError, match="must be from 0 to 3, got 4"):
        run(tiny_recipe(data__spec=f"{__name__}:make_data"), tmp_path / "run")


@pytest.mark.parametrize("make", ["make_data", "make_arrays"])
def test_a_label_of_a_billion_asks_for_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: str) -> None:
    monkeypatch.setattr(f"{__name__}.chosen", "huge")
    monkeypatch.setattr(f"{__name__}.num_classes", 10**9 + 1)
    with bounded(seconds=60), pytest.raises(DataError, match="labels for 1,000,000,001 classes, but only 4") as caught:
        run(tiny_recipe(data__spec=f"{__name__}:{make}"), tmp_path / "run")
    assert "without gaps" in str(caught.value)


def test_images_of_each_class_are_counted(tmp_path: Path) -> None:
    write_folder(tmp_path, ("ant", "bee"), train=3, test=2)
    (tmp_path / "train/bee/0.png").unlink()
    assert open_data(f"folder:{tmp_path}", DataSettings(image_size=8)).info.class_counts == ((3, 2), (2, 2))
    counts = open_data("digits").info.class_counts
    assert counts is not None and (sum(counts[0]), sum(counts[1])) == (1437, 360)
    assert dataclasses.fields(DataInfo)  # it is optional: data of one's own need not count
    assert make_data().info.class_counts is None
