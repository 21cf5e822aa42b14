"""The reference networks have the published sizes, and their parts do what was published."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from depl0.app.models import build
from depl0.app.models.resnet import ZeroPadShortcut


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def count_macs(network: nn.Module, image_shape: tuple[int, ...]) -> int:
    device = next(network.parameters()).device
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(torch.zeros(1, *image_shape, device=device))
    return counter.get_total_flops() // 2


CIFAR = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "arguments", "image_shape", "parameters", "macs"),
    [
        ("vgg16", {}, CIFAR, 14_724_042, 313_201_664),
        ("resnet20", {}, CIFAR, 269_722, 40_551_040),
        ("resnet20", {"shortcut": "B"}, CIFAR, 272_474, 40_813_184),
        ("resnet56", {}, CIFAR, 853_018, 125_485_696),
        ("resnet56", {"shortcut": "B"}, CIFAR, 855_770, 125_747_840),
        ("resnet56_b_dep_l0", {}, CIFAR, 855_770, 125_747_840),
        ("resnet50", {}, (3, 224, 224), 25_557_032, 4_089_184_256),
        ("lenet5", {}, (1, 28, 28), 431_080, 2_293_000),
        ("small_cnn", {}, (1, 8, 8), 65_834, 1_493_632),
    ],
)
def test_sizes_are_the_published_ones(name, arguments, image_shape, parameters, macs):
    with torch.device("meta"):
        network = build(name, **arguments)
    assert count_parameters(network) == parameters
    assert count_macs(network, image_shape) == macs


def test_option_a_takes_every_second_pixel_between_channels_of_zeros():
    x = torch.randn(2, 16, 8, 8)
    out = ZeroPadShortcut(16, 32)(x)
    assert out.shape == (2, 32, 4, 4)
    assert out[:, :8].count_nonzero() == 0
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, 24:].count_nonzero() == 0
