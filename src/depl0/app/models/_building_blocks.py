"""Weight initialisation and argument checks shared by several reference networks."""

from __future__ import annotations

from typing import Literal

from torch import nn


def he_initialise(network: nn.Module) -> None:
    """Initialise the weights of every convolution from He's normal distribution and its bias with zeros.

    The variance is set by the number of outputs, so that gradients keep their scale in the backward pass. Linear layers
    and batch norms keep PyTorch's initialisation.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_as_dep_l0(network: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Initialise the weights as the Dep-L0 paper's code does: classifiers by their inputs, biases from N(0, 0.01).

    Its ResNets set the variance of convolutions by the number of inputs, its VGG16 by that of outputs.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan = mode if isinstance(module, nn.Conv2d) else "fan_in"
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, 0, 0.01)


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of images from one side or both."""
    return (image_size, image_size) if isinstance(image_size, int) else image_size
