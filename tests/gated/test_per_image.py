"""Gates drawn for each image, against the arithmetic of the authors' code written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depl0
from depl0.errors import InputError
from depl0.gates.generators import make_generator

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Plain(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.one, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.two, self.bn2 = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.three, self.head = nn.Linear(8, 5), nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.one(x)))
        x = F.relu(self.bn2(self.two(x)))
        return self.head(F.relu(self.three(x.mean((2, 3)))))


def authors_gates(log_alpha: Tensor, eps: Tensor) -> Tensor:
    """The authors' sample_z: a quantile of the concrete distribution, stretched, and clipped by hardtanh."""
    y = torch.sigmoid((torch.log(eps) - torch.log(1 - eps) + log_alpha) / (2 / 3))
    return F.hardtanh(y * (1.1 + 0.1) - 0.1, min_val=0, max_val=1)


@pytest.mark.parametrize("generator", ["fc", "independent"])
def test_outputs_and_gradients_are_those_of_the_authors_code(generator: str) -> None:
    torch.manual_seed(0)
    model = Plain()
    gated = depl0.attach(model, IMAGES, generator=generator, preset="reference", draw="image").train()
    assert gated.plan.num_gates == 6 + 8 + 5
    torch.manual_seed(3)
    found = gated(IMAGES)
    found.square().sum().backward()
    wanted_gradients = [p.grad.clone() for p in gated.parameters()]
    statistics = gated.host.bn1.running_mean.clone()

    gated.zero_grad()
    model.bn1.reset_running_stats()
    torch.manual_seed(3)
    eps = torch.rand(len(IMAGES), 19)  # a number for each image and gate
    z = authors_gates(gated.log_alpha(), eps)
    x = F.relu(model.bn1(model.one(IMAGES)).mul(z[:, :6].view(5, 6, 1, 1)))
    x = F.relu(model.bn2(model.two(x)).mul(z[:, 6:14].view(5, 8, 1, 1)))
    outputs = model.head(F.relu(model.three(x.mean((2, 3))).mul(z[:, 14:])))
    torch.testing.assert_close(found, outputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.bn1.running_mean, statistics)
    outputs.square().sum().backward()
    for parameter, gradient in zip(gated.parameters(), wanted_gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_outside_training_nothing_differs() -> None:
    torch.manual_seed(0)
    model = Plain()
    gated = depl0.attach(model, IMAGES, draw="image", generator="independent").eval()
    gated.generator.start_from(torch.linspace(-4, 4, 19))
    batch = depl0.attach(model, IMAGES, generator="independent").eval()
    batch.generator.start_from(torch.linspace(-4, 4, 19))
    assert torch.equal(gated(IMAGES), batch(IMAGES))
    torch.testing.assert_close(gated.extract().eval()(IMAGES), gated(IMAGES), rtol=1e-4, atol=1e-5)


def test_a_search_cuts_while_it_draws_for_each_image() -> None:
    torch.manual_seed(0)
    gated = depl0.attach(Plain(), IMAGES, budget=0.4, draw="image").train()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3, steps=40))
    search = depl0.Search(gated, steps=40, optimizers=[optimizer], cut="progressive")
    labels = torch.arange(5) % 4
    for _ in range(40):
        search.step()
        optimizer.zero_grad()
        F.cross_entropy(gated(IMAGES), labels).backward()
        optimizer.step()
    compact = search.finish()
    assert depl0.cost(compact, IMAGES).macs <= 0.4 * gated.dense_cost.macs


def test_what_cannot_be_gated_image_by_image_is_refused_before_training() -> None:
    class Tokens(nn.Module):  # its first layer sees all images as one
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(F.relu(self.one(x.flatten(0, 2))))

    with pytest.raises(InputError, match="not applied image by image"):
        depl0.attach(Tokens(), IMAGES, draw="image")
    with pytest.raises(InputError, match="draw must be 'batch' or 'image'"):
        depl0.attach(Plain(), IMAGES, draw="example")  # type: ignore[arg-type]


def test_vgg16_starts_from_as_many_ones_as_the_authors_code() -> None:
    sizes = [64, 64, 128, 512]
    torch.manual_seed(0)
    backward = make_generator("fc", sizes, direction="backward", preset="reference-vgg16")
    # theirs: gens = [Linear(64, 512), Linear(512, 128), …], loga = ones(64), log(100)·tanh
    assert [tuple(layer.weight.shape) for layer in backward.layers] == [(64, 64), (64, 128), (128, 512), (512, 64)]
    log_alpha, pieces = torch.ones(64), []
    for layer in reversed(list(backward.layers)):
        log_alpha = math.log(100) * torch.tanh(F.linear(log_alpha, layer.weight, layer.bias))
        pieces.append(log_alpha)
    torch.testing.assert_close(backward(), torch.cat(pieces[::-1]))
    forward = [
        make_generator("fc", sizes, preset=p, rng=torch.Generator().manual_seed(0))()
        for p in ("reference", "reference-vgg16")
    ]
    assert torch.equal(*forward)
