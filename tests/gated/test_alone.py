"""Gates on one layer's output alone: they multiply where they should, count what they should, and cut nothing."""

from __future__ import annotations

import pytest
import torch

import depl0
from depl0.app.models.resnet import CifarResNet
from depl0.gated import GatedModel

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def resnet8() -> CifarResNet:
    return CifarResNet(1, num_classes=10, shortcut="A", in_channels=3)


@pytest.fixture(scope="module")
def gated() -> GatedModel:
    torch.manual_seed(0)
    return depl0.attach(resnet8(), IMAGES[:1], groups="inner", alone=("conv1",), evaluation="paper").eval()


@torch.no_grad()
def test_a_gate_closes_what_its_layer_writes_and_no_more(gated: GatedModel) -> None:
    gates = torch.ones(gated.plan.num_gates)
    gates[:16] = torch.linspace(0, 1, 16)
    seen = []
    hook = gated.host.layer1[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    gated.host(IMAGES)
    found = gated.call_with_gates(gates, IMAGES)
    hook.remove()
    torch.testing.assert_close(seen[1], seen[0] * gates[:16].view(-1, 1, 1))  # behind the ReLU: z·relu(x) = relu(z·x)
    assert not torch.equal(found, gated.host(IMAGES))


def test_it_counts_its_filters_and_nothing_that_could_be_cut(gated: GatedModel) -> None:
    one = torch.ones(gated.plan.num_gates)
    without = one.clone()
    without[:16] = 0
    penalties = [float(gated.expected(gates, "groups")) for gates in (one, without)]
    assert penalties[0] - penalties[1] == 16 * 3 * 9
    assert gated.snapshot().share(without > 0, "macs") == gated.snapshot().share(one > 0, "macs") == 1


def test_the_compact_network_keeps_the_channel_and_computes_the_same(gated: GatedModel) -> None:
    gates = torch.ones(gated.plan.num_gates)
    gates[[0, 5, 20]] = 0
    gated.fix_gates(gates)
    compact = gated.extract()
    gated.free_gates()
    assert (len(compact.conv1.weight), len(compact.layer1[0].conv1.weight)) == (16, 15)
    assert [compact.bn1.weight[5].item(), compact.bn1.bias[5].item()] == [0, 0]
