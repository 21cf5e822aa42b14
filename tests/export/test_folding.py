"""Batch norms are folded where that is exact, nowhere else, and never in the user's network."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

from depl0.analysis.recording import operator_name
from depl0.export.folding import fold_batch_norms
from depl0.export.program import capture
from tests.support.compare import call, distance, liven

pytestmark = pytest.mark.integrations

IMAGES = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class ReadTwice(nn.Module):
    """The convolution's output goes past the norm as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class SharedLayer(nn.Module):
    """One convolution, two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(self.first(self.conv(x))))


class ScaledWeight(nn.Module):
    """The weight is computed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.conv2d(x, self.conv.weight * 0.5))


class ByFunctions(nn.Module):
    """No batch norm module at all."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4, 3, 3))
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("var", torch.rand(5) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(F.batch_norm(F.conv2d(x, self.weight), self.mean, self.var))


class BatchStatistics(nn.Sequential):
    """A norm without statistics of its own uses the batch's."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, track_running_stats=False))


FOLDED = {
    "plain": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU()), IMAGES, 1),
    "bias": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)), IMAGES, 1),
    "no affine": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5, affine=False)), IMAGES, 1),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)), IMAGES, 1),
    "same padding": (lambda: nn.Sequential(nn.Conv2d(4, 5, 3, padding="same"), nn.BatchNorm2d(5)), IMAGES, 1),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d(6)), IMAGES, 1),
    "one-dimensional": (lambda: nn.Sequential(nn.Conv1d(4, 5, 1), nn.BatchNorm1d(5)), IMAGES.flatten(2), 1),
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU()), ROWS, 1),
    "by functions": (ByFunctions, IMAGES, 1),
    "read twice": (ReadTwice, IMAGES, 0),
    "shared layer": (SharedLayer, IMAGES, 0),
    "scaled weight": (ScaledWeight, IMAGES, 0),
    "batch statistics": (BatchStatistics, IMAGES, 0),
    "norm first": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3)), IMAGES, 0),
    "rows of rows": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(4)), IMAGES[:, :, 0], 0),
}


def norms_in(program: ExportedProgram) -> int:
    return sum(operator_name(node) == "batch_norm" for node in program.graph.nodes)


@pytest.mark.parametrize("name", FOLDED)
def test_folding(name: str) -> None:
    build, inputs, count = FOLDED[name]
    torch.manual_seed(0)
    model = liven(build(), inputs)
    before = OrderedDict((key, value.clone()) for key, value in model.state_dict().items())
    program = capture(model, inputs)
    norms = norms_in(program)
    assert fold_batch_norms(program) == count
    assert norms_in(program) == norms - count
    assert distance(call(model, inputs), call(program.module(), inputs)) < 1e-6
    if count:  # nothing of the norm is left but its vector that has become the bias
        assert len(program.state_dict) == 2
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_training_mode_of_the_network_is_kept() -> None:
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)).train()
    program = capture(model, IMAGES)
    assert model.training and fold_batch_norms(program) == 1
