"""Accuracy and latency: what they return, and that they leave networks alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depl0.app.data.base import DataInfo
from depl0.app.runtime.processes import make_accelerator
from depl0.app.tasks import check_network, find_task
from depl0.app.tasks.classification import class_scores
from depl0.app.training.evaluate import evaluate
from depl0.errors import DataError, InputError
from depl0.latency import summarise, time_networks
from tests.networks.tiny import SIDE, TinyNet, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

TASK = find_task("classification")


def info(classes: int) -> DataInfo:
    return DataInfo("squares", classes, None, (1, SIDE, SIDE), train_size=1, test_size=1)


def half_in_training() -> TinyNet:
    model = TinyNet().train()
    model.bn1.eval()
    return model


def test_accuracy_over_uneven_batches() -> None:
    model = nn.Identity()
    scores = torch.eye(4)[torch.tensor([0, 1, 2, 3, 0, 0])]
    labels = torch.tensor([0, 1, 2, 0, 0, 1])  # four of six
    accelerator = make_accelerator(tiny_recipe())
    batches = [(scores[:4], labels[:4]), (scores[4:], labels[4:])]
    assert evaluate(accelerator, model, batches, TASK) == pytest.approx(400 / 6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_no_numbers_are_refused(value: float) -> None:
    images, labels = torch.randn(4, 1, SIDE, SIDE), torch.zeros(4, dtype=torch.long)
    images[2, 0, 1, 1] = value
    with pytest.raises(DataError, match="hold NaN or infinite values, in 1 of the batches"):
        evaluate(make_accelerator(tiny_recipe()), TinyNet(), [(images[:2], labels[:2]), (images[2:], labels[2:])], TASK)


def test_modes_and_statistics_are_kept() -> None:
    model = half_in_training()
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randn(3, 1, SIDE, SIDE)
    evaluate(make_accelerator(tiny_recipe()), model, [(images, torch.zeros(3, dtype=torch.long))], TASK)
    check_network(TASK, model, images, info(4))
    time_networks({"a": model}, [images], repeats=2, seconds=1.0)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_modes_are_kept_where_it_fails() -> None:
    model = half_in_training()
    modes = [module.training for module in model.modules()]
    wrong = torch.randn(3, 2, SIDE, SIDE)
    with pytest.raises(InputError, match="does not run on"):
        check_network(TASK, model, wrong, info(4))
    with pytest.raises(RuntimeError):
        evaluate(make_accelerator(tiny_recipe()), model, [(wrong, torch.zeros(3, dtype=torch.long))], TASK)
    with pytest.raises(RuntimeError):
        time_networks({"a": model}, [wrong], repeats=2, seconds=1.0)
    assert [module.training for module in model.modules()] == modes


def test_latency_is_of_the_slower_one_larger() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(300):
                x = x + 1
            return x

    times = time_networks({"slow": Slow(), "fast": nn.Identity()}, [torch.zeros(100)], repeats=9, seconds=1.0)
    slow, fast = summarise(times["slow"]), summarise(times["fast"])
    assert slow.median > 3 * fast.median > 0
    assert slow.spread >= 0


@pytest.mark.parametrize("wrap", [lambda s: (s, None), lambda s: [s], lambda s: {"out": s}, lambda s: {"logits": s}])
def test_scores_among_other_outputs(wrap: object) -> None:
    scores = torch.ones(2, 3)
    assert class_scores(wrap(scores)) is scores  # type: ignore[operator]


@pytest.mark.parametrize("outputs", [None, (), {"x": torch.ones(1)}, "text"])
def test_outputs_without_scores_are_refused(outputs: object) -> None:
    with pytest.raises(InputError, match="must return class scores"):
        class_scores(outputs)


def test_classes_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match=r"scores of shape \(2, 4\), but the data has 10 classes"):
        check_network(TASK, TinyNet(), torch.randn(2, 1, SIDE, SIDE), info(10))
