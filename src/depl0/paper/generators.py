"""The paper's other generators (appendix B): convolutions along the gates, and a recurrent network from gate to gate.

Importing this registers them.
"""

from __future__ import annotations

import math
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Memory, register
from depl0.gates.generators.fc import Affine, draw_output_bias, draw_output_weight, output_layer
from depl0.gates.generators.presets import Preset

_KERNEL = 3
_HIDDEN = 32


class ConvolutionalGenerator(BoundedGenerator):
    """Computes log α_l = c·tanh(W_l·r + b_l). r is x_{l−1} after convolutions of one channel, each with a ReLU."""

    depth: ClassVar[int]
    """Number of convolutions of each group."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create the convolutions and one fully connected layer for each group."""
        convolutions, output = {}, {}
        for group in self.order():
            convolutions[group] = nn.Sequential()
            for place in range(self.depth):
                convolutions[group].append(_convolution(place, self.preset, rng)).append(nn.ReLU())
            output[group] = output_layer(self.inputs(group), self.sizes[group], self.preset, rng)
        self.convolutions = nn.ModuleList(convolutions[group] for group in sorted(convolutions))
        self.output = nn.ModuleList(output[group] for group in sorted(output))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return W·r + b."""
        convolved: Tensor = self.convolutions[group](previous.unsqueeze(0))  # (1 channel, gates)
        return cast(Affine, self.output[group])(convolved.squeeze(0)), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return cast(Affine, self.output[group]).bias


@register("conv1d")
@final
class Conv1d(ConvolutionalGenerator):
    """One convolution: Conv1d ReLU FC."""

    depth = 1


@register("conv1d-deep")
@final
class DeepConv1d(ConvolutionalGenerator):
    """Three convolutions: Conv1d ReLU Conv1d ReLU Conv1d ReLU FC."""

    depth = 3


@torch.no_grad()
def _convolution(place: int, preset: Preset, rng: torch.Generator | None) -> nn.Conv1d:
    """Create the convolution at one position of the chain.

    With PyTorch's initialisation, about every second convolution of one channel has only negative outputs, so that the
    ReLU after it is dead from the start. A preset with initial weights of its own starts near (x + 1)/2 instead, which
    maps (−1, 1) to (0, 1), and later convolutions start near the identity.
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


@register("lstm-shared")
@final
class SharedLSTM(BoundedGenerator):
    """Computes log α_k = c·tanh(w·h_k + b) with h_k, m_k = LSTM(x_{k−1}, h_{k−1}, m_{k−1}), gate after gate.

    x_{k−1} is the value that the previous gate passes on, also within a group. A group receives the last gate's value
    and the memory (h, m) of the previous group. All weights and the bias are shared by all gates, so gates differ only
    by the inputs and the memory that they receive. The preset's ``carry_gradient`` acts on the values passed on, and on
    the memory between groups.

    The published presets need nothing else. :meth:`start_from` must be able to set any log α, so it sets constants that
    are added gate by gate and never learned.

    Its time is proportional to the number of gates. The paper found it too slow, and not to converge, for the 4,224
    gates of VGG16.
    """

    offsets: Tensor

    def build(self, rng: torch.Generator | None) -> None:
        """Create one cell, one output weight, one bias, and the constants, which are 0."""
        self.cell = nn.LSTMCell(1, _HIDDEN, dtype=torch.float32, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.cell.parameters():
                parameter.uniform_(-1 / math.sqrt(_HIDDEN), 1 / math.sqrt(_HIDDEN), generator=rng)
        self.weight = nn.Parameter(torch.empty(1, _HIDDEN, dtype=torch.float32))
        self.shared = nn.Parameter(torch.empty(1, dtype=torch.float32))
        self.register_buffer("offsets", torch.zeros(sum(self.sizes), dtype=torch.float32))
        draw_output_weight(self.weight, self.preset, rng)
        draw_output_bias(self.shared, self.preset, rng)

    def bias(self, group: int) -> Tensor:
        """Return the group's part of the constants."""
        return self.offsets.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return w·h + b for each gate of a group."""
        return self._walk(group, None, previous, memory)

    def set_pre_activation(self, group: int, wanted: Tensor, previous: Tensor, memory: Memory) -> None:
        """Set the constants one after the other, because each determines the input of the next gate."""
        self._walk(group, wanted, previous, memory)

    def _walk(self, group: int, wanted: Tensor | None, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Step through the gates of one group. With ``wanted`` pre-activations, set each constant on the way."""
        scale = 1 / _HIDDEN if self.preset.mean_input else 1.0
        hidden, cell = map(self.scale_gradient, memory) if memory else self.weight.new_zeros(2, _HIDDEN)
        value = previous[-1:]
        pre_activations = []
        for gate, offset in enumerate(torch.split(self.bias(group), 1)):
            hidden, cell = self.cell(value, (hidden, cell))
            if wanted is not None:
                offset.copy_(wanted[gate] - torch.mv(self.weight, hidden * scale) - self.shared)
            pre_activations.append(torch.addmv(offset + self.shared, self.weight, hidden * scale))
            value = self.feed_squashed(torch.tanh(pre_activations[-1]))
        return torch.cat(pre_activations), (hidden, cell)
