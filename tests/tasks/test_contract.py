"""What holds for every task: one suite over all that are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from depl0.app.data import DataInfo
from depl0.app.tasks import TASKS, Task, check_network, find_task
from depl0.errors import InputError

BATCH = 12


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def choose(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1))


def info(**changes: object) -> DataInfo:
    fields = {"name": "made", "num_classes": None, "class_names": None, "image_shape": (3, 4, 5)}
    return DataInfo(**{**fields, "train_size": BATCH, "test_size": BATCH, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """A batch that fits a task, what its data says, and what it should refuse."""

    outputs: Tensor
    targets: Tensor
    info: DataInfo
    perfect: Callable[[Tensor], Tensor]
    best: float
    wrong: tuple[tuple[Tensor, DataInfo, str], ...]


def label_maps() -> Tensor:
    maps = choose(3, BATCH, 4, 5)
    maps[:, 0] = 255
    return maps.to(torch.uint8)


SCORES, MAPS = draw(BATCH, 3), draw(BATCH, 3, 4, 5)
OF_CLASSES = info(num_classes=3)
OF_MAPS = info(target_shape=(4, 5))
CASES = {
    "classification": Case(
        SCORES,
        choose(3, BATCH),
        OF_CLASSES,
        lambda targets: nn.functional.one_hot(targets, 3).float(),
        100.0,
        (
            (draw(BATCH, 4), OF_CLASSES, "returned scores of shape (12, 4), but the data has 3 classes"),
            (MAPS, OF_CLASSES, "returned scores of shape (12, 3, 4, 5), but the data has 3 classes"),
            (SCORES, info(target_shape=(2,)), "needs one class number for every image, but made has other targets"),
        ),
    ),
    "segmentation": Case(
        MAPS,
        label_maps(),
        OF_MAPS,
        lambda targets: nn.functional.one_hot(targets.long().clamp(max=2), 3).movedim(3, 1).float(),
        100.0,
        (
            (SCORES, OF_MAPS, "needs scores of shape (batch, classes, height, width), but the network returned (12"),
            (MAPS[..., :2], OF_MAPS, "returned scores of 4 x 2 pixels, but the targets of made have shape (4, 5)"),
        ),
    ),
    "regression": Case(
        draw(BATCH, 2),
        draw(BATCH, 2) + 1,
        info(target_shape=(2,)),
        lambda targets: targets,
        0.0,
        (
            (draw(BATCH, 3), info(target_shape=(2,)), "numbers of shape (3,) for an image, but the targets of made"),
            (draw(BATCH, 2), info(target_shape=()), "have shape ()"),
            (draw(BATCH, 2), info(target_shape=None), "needs targets that are one tensor, but those of made are sev"),
        ),
    ),
}


@pytest.fixture(params=sorted(set(TASKS) - {"heads"}))  # tests/tasks/test_several_inputs.py has the tests of heads
def case(request: pytest.FixtureRequest) -> tuple[Task, Case]:
    return find_task(request.param), CASES[request.param]


def test_sums_of_parts_are_those_of_the_whole(case: tuple[Task, Case]) -> None:
    task, batch = case
    whole = task.measure(batch.outputs, batch.targets)
    assert whole.ndim == 1 and whole.is_floating_point() and not whole.requires_grad
    for sizes in ([4, 4, 4], [1, 11], [5, 7]):
        parts = zip(batch.outputs.split(sizes), batch.targets.split(sizes), strict=True)
        found = torch.stack([task.measure(outputs, targets) for outputs, targets in parts])
        torch.testing.assert_close(found.sum(0), whole)
        assert task.value(found.sum(0)) == pytest.approx(task.value(whole))


def test_a_network_that_is_right_has_the_best_value(case: tuple[Task, Case]) -> None:
    task, batch = case
    best = task.value(task.measure(batch.perfect(batch.targets), batch.targets))
    assert best == pytest.approx(batch.best)
    other = task.value(task.measure(batch.outputs, batch.targets))
    assert best > other if task.metric.higher_is_better else best < other


def test_the_loss_is_a_mean_in_full_precision(case: tuple[Task, Case]) -> None:
    """A batch twice over has the loss of the batch."""
    task, batch = case
    twice = task.loss(torch.cat([batch.outputs] * 2), torch.cat([batch.targets] * 2))
    torch.testing.assert_close(twice, task.loss(batch.outputs, batch.targets))
    assert task.loss(batch.outputs.bfloat16(), batch.targets).dtype == torch.float32
    assert task.measure(batch.outputs.bfloat16(), batch.targets).dtype == torch.float64


@pytest.mark.parametrize("wrap", [lambda x: {"out": x, "aux": x + 1}, lambda x: (x, None)])
def test_a_network_may_return_more(case: tuple[Task, Case], wrap: Callable[[Tensor], object]) -> None:
    task, batch = case
    task.check(wrap(batch.outputs), batch.info)
    torch.testing.assert_close(task.loss(wrap(batch.outputs), batch.targets), task.loss(batch.outputs, batch.targets))
    torch.testing.assert_close(
        task.measure(wrap(batch.outputs), batch.targets), task.measure(batch.outputs, batch.targets)
    )


def test_outputs_that_do_not_fit_are_refused(case: tuple[Task, Case]) -> None:
    task, batch = case
    task.check(batch.outputs, batch.info)
    for outputs, data, text in batch.wrong:
        with pytest.raises(InputError) as caught:
            task.check(outputs, data)
        assert text in str(caught.value)
    with pytest.raises(InputError, match=r"must return .* \(a tensor\), got str instead"):
        task.check("nothing", batch.info)


def test_a_network_learns_from_another_as_far_as_they_differ(case: tuple[Task, Case]) -> None:
    task, batch = case
    assert task.distills
    outputs = batch.outputs.clone().requires_grad_()
    assert float(task.distill(batch.outputs, batch.outputs, 2.0)) == pytest.approx(0, abs=1e-6)
    loss = task.distill(outputs, batch.outputs.flip(0), 2.0)
    (slope,) = torch.autograd.grad(loss, outputs)
    assert float(loss.detach()) > 0 and float(slope.norm()) > 0


def test_a_network_is_checked_as_it_is() -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(60), nn.Linear(60, 3)).train()
    check_network(find_task("classification"), network, draw(1, 3, 4, 5), info(num_classes=3))
    assert network.training and int(network[1].num_batches_tracked) == 0  # type: ignore[arg-type]
    with pytest.raises(InputError, match="but the data has 7 classes"):
        check_network(find_task("classification"), network, draw(1, 3, 4, 5), info(num_classes=7))
