"""The numbers of the built-in tasks by hand, and tasks of the user's own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from depl0.app.tasks import ACCURACY, Metric, find_task, metric_in
from depl0.errors import FormatError, InputError

OWN = """
import torch
from dataclasses import dataclass
from depl0.app.tasks import Metric, Task

@dataclass(frozen=True)
class Points(Task):
    metric = Metric("distance", "px", higher_is_better=False)
    scale: float = 1.0

    def loss(self, outputs, targets):
        return self.scale * (outputs - targets["points"]).abs().mean()

    def measure(self, outputs, targets):
        distance = (outputs - targets["points"]).norm(dim=1)
        return torch.stack([distance.sum(), torch.tensor(float(len(distance)))])

    def value(self, sums):
        return float(sums[0] / sums[1])

def made(scale): return Points(scale)
class Half(Task):
    metric = Metric("half")
    def loss(self, outputs, targets): ...
def text(): return "a task"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


# -- built in ----------------------------------------------------------------------------------------------------------


def test_accuracy_and_its_loss() -> None:
    task = find_task("classification", label_smoothing=0.1)
    scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [5.0, 0.0]])
    labels = torch.tensor([0, 1, 1, 0])
    assert task.measure(scores, labels).tolist() == [3, 4]
    assert task.value(torch.tensor([3.0, 4.0])) == 75.0
    wanted = nn.CrossEntropyLoss(label_smoothing=0.1)(scores, labels)
    assert torch.equal(task.loss(scores, labels), wanted)  # to the last bit, as runs before there were tasks


def test_mean_iou_is_that_of_all_images_together() -> None:
    """Of the pixels that count, class 0 has 2 in both and 5 in either, class 1 has 1 and 4, classes 2 and 3 none."""
    found = torch.tensor([[[0, 0, 1, 1]], [[0, 1, 0, 2]]])
    wanted = torch.tensor([[[0, 0, 0, 1]], [[1, 0, 255, 255]]])
    scores = nn.functional.one_hot(found, 4).movedim(3, 1).float()
    task = find_task("segmentation")
    assert task.value(task.measure(scores, wanted)) == pytest.approx(100 * (2 / 5 + 1 / 4) / 2)
    other = find_task("segmentation", ignore_index=1)
    scores3 = scores[:, :3]
    assert other.value(other.measure(scores3[:1], wanted[:1])) == pytest.approx(100 * (2 / 3 + 0) / 2)


def test_ignored_pixels_teach_nothing() -> None:
    task = find_task("segmentation")
    scores = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([[[0, 255], [1, 2]], [[255, 255], [255, 255]]])
    torch.testing.assert_close(task.loss(scores, labels), nn.functional.cross_entropy(scores, labels, ignore_index=255))
    (slope,) = torch.autograd.grad(task.loss(scores, labels), scores)
    assert not slope[1].any() and not slope[0, :, 0, 1].any()
    assert float(task.loss(scores.detach(), torch.full_like(labels, 255))) == 0.0  # not 0/0
    assert math.isnan(task.value(task.measure(scores, torch.full_like(labels, 255))))


def test_rmse_is_over_all_numbers() -> None:
    task = find_task("regression")
    outputs, targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert task.measure(outputs, targets).tolist() == [20, 4]
    assert task.value(task.measure(outputs, targets)) == pytest.approx(5**0.5)
    assert float(task.loss(outputs, targets)) == 5.0


# -- of one's own -----------------------------------------------------------------------------------------------------


def test_a_task_of_ones_own(own: Path) -> None:
    task = find_task(f"{own}:Points", scale=2.0)
    assert (task.metric.name, task.metric.show(1.5), task.metric.higher_is_better) == ("distance", "1.5 px", False)
    targets = {"points": torch.zeros(2, 2)}
    outputs = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert task.value(task.measure(outputs, targets)) == 3.0
    assert float(task.loss(outputs, targets)) == 4.0
    assert not task.distills
    with pytest.raises(InputError, match="Points does not support distillation"):
        task.distill(outputs, outputs, 2.0)
    assert find_task(f"{own}:made", scale=3.0).loss(outputs, targets) == 6.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Half", "own.py:Half' lacks measure, value.\nhint: the documentation has a whole one."),
        ("text", "must be a depl0.app.tasks.Task or return one, got a str instead"),
    ],
)
def test_tasks_that_cannot_be_used(own: Path, name: str, text: str) -> None:
    with pytest.raises(InputError, match=f"task '{re.escape(str(own))}:{name}'|{text}") as caught:
        find_task(f"{own}:{name}")
    assert re.search(text, str(caught.value))


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_go_to_files_and_back() -> None:
    rmse = Metric("rmse", "mm", higher_is_better=False)
    assert metric_in({"metric": rmse.to_dict()}) == rmse
    assert metric_in({"dense": {}}) is ACCURACY
    with pytest.raises(FormatError, match="metric must have a name, a unit and higher_is_better, got 'rmse'"):
        metric_in({"metric": "rmse"})
    with pytest.raises(FormatError, match=r"got \{'name': 'a b'\}"):
        metric_in({"metric": {"name": "a b"}})
