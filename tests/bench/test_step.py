"""What gates add to a training step: operators and memory, counted; time is for the benchmark to say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from counting import OperatorCount, counting_saved_bytes, is_view
from step import DENSE, EXTRA, EXTRA_PER_GROUP, VARIANTS, make_steppers

pytestmark = pytest.mark.runs

BATCH = 128
FC = next(variant for variant in VARIANTS if variant.name == "fc, budget")
GROUPS = {"resnet56": 28, "vgg16": 13}


@pytest.mark.parametrize("model", GROUPS)
def test_gates_add_few_operators_and_hardly_any_memory(model: str) -> None:
    steppers = make_steppers(model, 2)
    plan = steppers[FC.name].plan
    counts = {name: stepper.count() for name, stepper in steppers.items()}
    dense = counts.pop(DENSE.name)
    assert len(counts) == len(VARIANTS) - 1
    for name, count in counts.items():
        assert count.groups == GROUPS[model], name
        assert 0 < count.non_view - dense.non_view <= EXTRA_PER_GROUP * count.groups + EXTRA, name
    # What activations keep grows with the batch, what gates keep does not: two small batches tell about a large one.
    some = make_steppers(model, 4, variants=(DENSE, FC), plan=plan)
    larger = {name: stepper.count() for name, stepper in some.items()}
    per_image = (larger[DENSE.name].saved_bytes - dense.saved_bytes) / 2
    at_batch = dense.saved_bytes + (BATCH - 2) * per_image
    assert (
        larger[FC.name].saved_bytes - larger[DENSE.name].saved_bytes == counts[FC.name].saved_bytes - dense.saved_bytes
    )
    assert larger[FC.name].non_view == counts[FC.name].non_view
    for name, count in counts.items():
        assert 0 < count.saved_bytes - dense.saved_bytes <= 0.01 * at_batch, name


def test_operators_are_views_by_what_they_return() -> None:
    aten = torch.ops.aten
    assert all(map(is_view, [aten.view.default, aten.detach.default, aten.split.Tensor, aten.expand.default]))
    assert not any(map(is_view, [aten.clone.default, aten.mul_.Tensor, aten.cat.default, aten._fused_sgd_.default]))


def test_operators_of_forward_backward_and_optimizer_are_counted() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    with OperatorCount() as count:
        (weight.view(3, 1) * 2).sum().backward()
        optimizer.step()
    assert count.others["aten.mul.Tensor"] == 2  # forward and backward
    assert count.others["aten._fused_sgd_.default"] == 1
    assert count.views["aten.view.default"] >= 2


def test_saved_memory_is_what_the_backward_pass_needs() -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.weight * x  # keeps the weight, which is there anyway, and x
            y = x.exp()  # keeps its result
            return (y * y.view(10)).sum()  # keeps y twice, which is one storage

    network = Squares()
    x = torch.zeros(10)
    with counting_saved_bytes(network) as saved:
        network(x).backward()
    assert saved.total == 2 * 10 * 4
    with counting_saved_bytes(network) as saved:
        (network.weight * 2 * x).sum().backward()  # a scaled copy of a parameter is kept in no operator here
    assert saved.total == 10 * 4
