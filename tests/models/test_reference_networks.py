"""The reference networks have the published sizes, load published weights, and refuse wrong arguments clearly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import depl0.app.models
from depl0._util.optional import import_torchvision
from depl0.app.models import build, names
from depl0.app.models.resnet import ZeroPadShortcut
from depl0.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]


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
        ("resnet32", {}, CIFAR, 464_154, 68_862_592),
        ("resnet44", {}, CIFAR, 658_586, 97_174_144),
        ("resnet56", {}, CIFAR, 853_018, 125_485_696),
        ("resnet56", {"shortcut": "B"}, CIFAR, 855_770, 125_747_840),
        ("resnet56_b_dep_l0", {}, CIFAR, 855_770, 125_747_840),
        ("resnet110", {}, CIFAR, 1_727_962, 252_887_680),
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


@pytest.mark.parametrize("name", ["vgg16", "resnet20", "resnet50", "lenet5"])
def test_convolutions_start_with_he_variance(name):
    torch.manual_seed(0)
    for module in build(name).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            wanted = (2 / fan_out) ** 0.5
            # The standard deviation of n normal numbers is known to about 1/sqrt(2n); allow five times that.
            tolerance = 5 / (2 * module.weight.numel()) ** 0.5
            assert module.weight.std().item() == pytest.approx(wanted, rel=tolerance)
            assert module.bias is None or module.bias.count_nonzero() == 0


def test_option_a_takes_every_second_pixel_between_channels_of_zeros():
    x = torch.randn(2, 16, 8, 8)
    out = ZeroPadShortcut(16, 32)(x)
    assert out.shape == (2, 32, 4, 4)
    assert out[:, :8].count_nonzero() == 0
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, 24:].count_nonzero() == 0


# -- published weights -------------------------------------------------------------------------------------------------


def trained(name: str) -> nn.Module:
    folder = Path(os.environ.get("DEPL0_WEIGHTS", REPOSITORY.parent / "shared" / "weights"))
    file = folder / f"{name}_cifar10.safetensors"
    if not file.is_file():
        pytest.skip(f"{file.name} not found; set DEPL0_WEIGHTS to the folder that holds it")
    network = build(name, shortcut="A")
    network.load_state_dict(load_file(file), strict=True)
    return network.eval()


def cifar10_test_set() -> tuple[Tensor, Tensor]:
    folder = os.environ.get("DEPL0_CIFAR10")
    if not folder:
        pytest.skip("set DEPL0_CIFAR10 to the folder that holds cifar-10-batches-bin")
    file = Path(folder) / "cifar-10-batches-bin" / "test_batch.bin"
    if not file.is_file():
        pytest.skip(f"DEPL0_CIFAR10 is set, but has no {file.parent.name}/{file.name}")
    records = torch.from_numpy(np.fromfile(file, dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32))
    labels, images = records[:, 0].long(), records[:, 1:].reshape(-1, *CIFAR)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return (images / 255 - mean) / deviation, labels


@pytest.mark.slow
@pytest.mark.parametrize(("name", "correct"), [("resnet20", 9173), ("resnet56", 9339)])
def test_published_cifar_weights_reach_their_accuracy(name, correct):
    network = trained(name)
    images, labels = cifar10_test_set()
    assert len(labels) == 10_000
    with torch.inference_mode():
        guesses = torch.cat([network(batch).argmax(dim=1) for batch in images.split(500)])
    # Another convolution algorithm may turn an image that lies on the border between two classes.
    assert (guesses == labels).sum().item() == pytest.approx(correct, abs=2)


def test_resnet50_is_torchvisions_resnet50():
    theirs = import_torchvision().models.resnet50(weights=None).eval()
    ours = build("resnet50").eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(1, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images))


# -- building by name --------------------------------------------------------------------------------------------------


def test_every_network_is_registered_under_its_own_name():
    for name in ("lenet5", "resnet20", "resnet32", "resnet44", "resnet50", "resnet56", "resnet110", "vgg16"):
        assert name in names() and getattr(depl0.app.models, name).__name__ == name


def test_unknown_argument_names_the_signature():
    with pytest.raises(InputError, match=r"vgg16 cannot be built with these arguments: .*'classes'") as caught:
        build("vgg16", classes=100)
    assert caught.value.hint is not None and "num_classes: 'int' = 10" in caught.value.hint


def test_other_shortcuts_are_refused():
    with pytest.raises(InputError, match="'shortcut' parameter of resnet56 must be 'A' or 'B', got 'C' instead"):
        build("resnet56", shortcut="C")
