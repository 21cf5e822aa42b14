"""Closed groups whose whole branch is taken out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, NormAct, conv, image
from tests.support.compare import call, distance, liven, pruned, random_gates
from torch import Tensor, nn

import depl0
from depl0.app import models
from depl0.replacements.constant import ConstantLayer
from depl0.surgery.record import record_of

pytestmark = pytest.mark.structures

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
CLOSED = ("layer1.1.conv1", "layer2.0.conv1", "layer3.2.conv1")


def with_closed(model: nn.Module, inputs: Tensor, closed: tuple[str, ...]) -> depl0.GatedModel:
    gated = depl0.attach(liven(model, inputs), inputs).eval()
    gates = random_gates(gated.plan.num_gates, 4).clamp_min(0.1)
    for group in gated.plan.groups:
        if group.name in closed:
            gates[group.gates] = 0
    gated.fix_gates(gates)
    return gated


def convolutions_run(model: nn.Module, inputs: Tensor) -> int:
    ran: Counter[str] = Counter()
    handles = [
        module.register_forward_hook(lambda *_: ran.update(["conv"]))
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    call(model, inputs)
    for handle in handles:
        handle.remove()
    return ran["conv"]


@pytest.mark.parametrize("shortcut", ["A", "B"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_of_resnet20_are_removed(shortcut: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    host, images = models.build("resnet20", shortcut=shortcut).to(dtype), IMAGES.to(dtype)
    gated = with_closed(host, images, CLOSED)
    kept, compact = gated.extract().eval(), gated.extract(remove_blocks=True).eval()
    assert distance(call(gated, images), call(compact, images)) < (1e-5 if dtype == torch.float32 else 1e-12)
    assert type(compact) is type(host)
    assert convolutions_run(compact, images) == convolutions_run(kept, images) - 2 * len(CLOSED)
    assert isinstance(compact.layer1[1].conv2, ConstantLayer) and isinstance(compact.layer1[1].bn2, nn.Identity)
    assert depl0.cost(compact, images).macs < depl0.cost(kept, images).macs
    assert isinstance(host.layer1[1].conv2, nn.Conv2d)


def test_network_with_removed_blocks_trains() -> None:
    torch.manual_seed(0)
    compact = with_closed(models.build("resnet20"), IMAGES, CLOSED).extract(remove_blocks=True).train()
    optimizer = torch.optim.SGD([p for p in compact.parameters() if p.requires_grad], lr=0.1)
    before = compact.layer1[1].conv2.constant.detach().clone()
    compact(IMAGES).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, compact.layer1[1].conv2.constant)
    assert all(p.isfinite().all() for p in compact.parameters())


def test_everything_closed_is_a_constant_network() -> None:
    gated = with_closed(models.build("resnet20"), IMAGES, ())
    gated.fix_gates(torch.zeros(gated.plan.num_gates))
    compact = gated.extract(remove_blocks=True).eval()
    assert distance(call(gated, IMAGES), call(compact, IMAGES)) < 1e-5
    assert convolutions_run(compact, IMAGES) < 5


class Branch(Classifier):
    """One convolution that is closed, one that reads it, and a norm behind."""

    def __init__(self, norm: nn.Module, reader: nn.Module | None = None) -> None:
        super().__init__(6)
        self.one, self.two, self.norm = conv(3, 8), reader or conv(8, 6), norm

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.two(F.relu(self.one(x))))


def check_branch(host: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    gated = with_closed(host, image(), ("one",))
    compact = gated.extract(remove_blocks=True).eval()
    assert distance(call(gated, image()), call(compact, image())) < 1e-5
    assert len(record_of(compact).removed) > 0
    return compact


def test_norm_is_folded_into_the_constant() -> None:
    compact = check_branch(Branch(nn.BatchNorm2d(6)))
    assert isinstance(compact.norm, nn.Identity)


def test_norm_with_something_behind_its_affine_stays() -> None:
    assert type(check_branch(Branch(NormAct(6))).norm) is NormAct


def test_norm_of_two_layers_stays() -> None:
    class Shared(Branch):
        def __init__(self) -> None:
            super().__init__(nn.BatchNorm2d(6))
            self.other = conv(3, 6)

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) + self.norm(self.other(x))

    assert type(check_branch(Shared()).norm) is nn.BatchNorm2d


@pytest.mark.parametrize(
    "reader",
    [
        nn.Conv2d(8, 6, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(8, 6, (2, 3), padding="same", dilation=(1, 2)),
        nn.Conv2d(8, 6, 3, padding=2, padding_mode="reflect"),
    ],
    ids=["strided", "same", "reflect"],
)
def test_constant_has_the_shape_of_the_layer(reader: nn.Module) -> None:
    compact = check_branch(Branch(nn.BatchNorm2d(6), reader))
    assert isinstance(compact.two, ConstantLayer)
    assert compact.two(image(1)).shape == reader(image(8)).shape


def test_frozen_layers_become_frozen_constants() -> None:
    host = Branch(nn.BatchNorm2d(6))
    host.two.requires_grad_(False)
    assert not check_branch(host).two.constant.requires_grad


def test_extraction_composes_with_removed_blocks(tmp_path: object) -> None:
    torch.manual_seed(0)
    first = with_closed(models.build("resnet20"), IMAGES, CLOSED[:1]).extract(remove_blocks=True).eval()
    gated = with_closed(first, IMAGES, CLOSED[2:])
    second = gated.extract(remove_blocks=True).eval()
    assert distance(call(gated, IMAGES), call(second, IMAGES)) < 1e-5
    loaded = depl0.load(depl0.save(second, str(tmp_path)), lambda: models.build("resnet20")).eval()
    assert distance(call(second, IMAGES), call(loaded, IMAGES)) == 0
    assert set(record_of(loaded).removed) >= {"layer1.1.conv2", "layer3.2.conv2"}


def test_streams_with_a_constant_can_still_be_pruned(tmp_path: object) -> None:
    torch.manual_seed(0)
    first = with_closed(models.build("resnet20", shortcut="B"), IMAGES, CLOSED).extract(remove_blocks=True).eval()
    gated, second = pruned(first, IMAGES, seed=3)
    assert {"conv1", "layer2.0.shortcut.0"} & {g.name for g in gated.plan.groups}
    assert len(second.layer1[1].conv2.constant) < len(first.layer1[1].conv2.constant)
    loaded = depl0.load(depl0.save(second, str(tmp_path)), lambda: models.build("resnet20", shortcut="B")).eval()
    assert distance(call(second, IMAGES), call(loaded, IMAGES)) == 0
