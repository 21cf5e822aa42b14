"""Generators that convolve along the gates of a group before a fully connected layer (appendix B)."""

from __future__ import annotations

import abc
import math
from typing import cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Memory
from depl0.gates.generators.layers import Affine, output_layer
from depl0.gates.generators.presets import Preset
from depl0.gates.generators.registry import register

_KERNEL = 3


class ConvolutionalGenerator(BoundedGenerator):
    """Gives log α_l = c·tanh(W_l·r + b_l), where r is x_{l−1} after convolutions of one channel, each with a ReLU."""

    @abc.abstractmethod
    def depth(self) -> int:
        """Count the convolutions of each group."""

    def build(self, rng: torch.Generator | None) -> None:
        """Make the convolutions and one fully connected layer for each group."""
        convolutions, output = {}, {}
        for group in self.order():
            convolutions[group] = nn.Sequential()
            for place in range(self.depth()):
                convolutions[group].append(_convolution(place, self.preset, rng)).append(nn.ReLU())
            output[group] = output_layer(self.inputs(group), self.sizes[group], self.preset, rng)
        self.convolutions = nn.ModuleList(convolutions[group] for group in sorted(convolutions))
        self.output = nn.ModuleList(output[group] for group in sorted(output))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Give W·r + b."""
        convolved: Tensor = self.convolutions[group](previous.unsqueeze(0))  # (1 channel, gates)
        return cast(Affine, self.output[group])(convolved.squeeze(0)), memory

    def bias(self, group: int) -> Tensor:
        """Give b."""
        return cast(Affine, self.output[group]).bias


@register("conv1d")
@final
class Conv1d(ConvolutionalGenerator):
    """One convolution: Conv1d ReLU FC."""

    def depth(self) -> int:
        """Count the convolutions of each group."""
        return 1


@register("conv1d-deep")
@final
class DeepConv1d(ConvolutionalGenerator):
    """Three convolutions: Conv1d ReLU Conv1d ReLU Conv1d ReLU FC."""

    def depth(self) -> int:
        """Count the convolutions of each group."""
        return 3


@torch.no_grad()
def _convolution(place: int, preset: Preset, rng: torch.Generator | None) -> nn.Conv1d:
    """Make the convolution at one place of the chain.

    With PyTorch's initialisation a convolution of one channel gives nothing but negative numbers about every second
    time, and the ReLU behind it is dead from the start. A preset with initial weights of its own starts near (x + 1)/2
    instead, which maps (−1, 1) to (0, 1), and goes on near the identity.
    """
    layer = nn.Conv1d(1, 1, _KERNEL, padding=_KERNEL // 2, dtype=torch.float32, device="meta").to_empty(device="cpu")
    bias = cast(Tensor, layer.bias)
    limit = 1 / math.sqrt(_KERNEL)
    layer.weight.uniform_(-limit, limit, generator=rng)
    bias.uniform_(-limit, limit, generator=rng)
    if preset.initial_weight is not None:
        layer.weight.mul_(preset.initial_weight)
        layer.weight[0, 0, _KERNEL // 2] += 0.5 if place == 0 else 1.0
        bias.fill_(0.5 if place == 0 else 0.0)
    return layer
