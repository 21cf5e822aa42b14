"""The paper's other generators (appendix B): convolutions along the gates, and a recurrent network from gate to gate.

Importing this registers them.
"""

from __future__ import annotations

import abc
import math
from typing import cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Memory, register
from depl0.gates.generators.fc import Affine, draw_output_bias, draw_output_weight, output_layer
from depl0.gates.generators.presets import Preset

_KERNEL = 3
_HIDDEN = 32


class ConvolutionalGenerator(BoundedGenerator):
    """Computes log α_l = c·tanh(W_l·r + b_l). r is x_{l−1} after convolutions of one channel, each with a ReLU."""

    @abc.abstractmethod
    def depth(self) -> int:
        """Return the number of convolutions of each group."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create the convolutions and one fully connected layer for each group."""
        convolutions, output = {}, {}
        for group in self.order():
            convolutions[group] = nn.Sequential()
            for place in range(self.depth()):
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

    def depth(self) -> int:
        """Return the number of convolutions of each group."""
        return 1


@register("conv1d-deep")
@final
class DeepConv1d(ConvolutionalGenerator):
    """Three convolutions: Conv1d ReLU Conv1d ReLU Conv1d ReLU FC."""

    def depth(self) -> int:
        """Return the number of convolutions of each group."""
        return 3


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


class RecurrentGenerator(BoundedGenerator):
    """Computes log α_k = c·tanh(w·h_k + b_k) with h_k, m_k = LSTM(x_{k−1}, h_{k−1}, m_{k−1}), gate after gate.

    x_{k−1} is the value that the previous gate passes on, also within a group. A group receives the last gate's value
    and the memory (h, m) of the previous group. Weights are shared by all gates. The preset's ``carry_gradient`` acts
    on the values passed on, and on the memory between groups.

    Its time is proportional to the number of gates. The paper found it too slow, and not to converge, for the 4,224
    gates of VGG16.
    """

    @abc.abstractmethod
    def build_biases(self, rng: torch.Generator | None) -> None:
        """Create the biases that are added to w·h."""

    @abc.abstractmethod
    def common(self) -> Tensor | None:
        """Return the bias shared by all gates, or None if there is none."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create one cell, one output weight, and the biases."""
        self.cell = nn.LSTMCell(1, _HIDDEN, dtype=torch.float32, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.cell.parameters():
                parameter.uniform_(-1 / math.sqrt(_HIDDEN), 1 / math.sqrt(_HIDDEN), generator=rng)
        self.weight = nn.Parameter(torch.empty(1, _HIDDEN, dtype=torch.float32))
        self.build_biases(rng)

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return w·h + b for each gate of a group."""
        return self._walk(self.bias(group), None, previous, memory)

    def set_pre_activation(self, group: int, wanted: Tensor, previous: Tensor, memory: Memory) -> None:
        """Set the biases one after the other, because each determines the input of the next gate."""
        self._walk(self.bias(group), wanted, previous, memory)

    def _walk(self, biases: Tensor, wanted: Tensor | None, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Step through the gates of one group. With ``wanted`` pre-activations, set each bias on the way."""
        scale = 1 / _HIDDEN if self.preset.mean_input else 1.0
        hidden, cell = map(self.scale_gradient, memory) if memory else self.weight.new_zeros(2, _HIDDEN)
        value, common = previous[-1:], self.common()
        pre_activations = []
        for gate, bias in enumerate(torch.split(biases, 1)):
            hidden, cell = self.cell(value, (hidden, cell))
            if wanted is not None:
                bias.copy_(wanted[gate] - torch.mv(self.weight, hidden * scale) - (0.0 if common is None else common))
            whole = bias if common is None else bias + common
            pre_activations.append(torch.addmv(whole, self.weight, hidden * scale))
            value = self.feed_squashed(torch.tanh(pre_activations[-1]))
        return torch.cat(pre_activations), (hidden, cell)

    def _of_group(self, flat: Tensor, group: int) -> Tensor:
        return flat.narrow(0, sum(self.sizes[:group]), self.sizes[group])


@register("lstm")
@final
class LSTM(RecurrentGenerator):
    """Has one learned bias b_k for each gate, so that it can start from any log α and reach any other."""

    def build_biases(self, rng: torch.Generator | None) -> None:
        """Create a bias for each gate."""
        self.biases = nn.Parameter(torch.empty(sum(self.sizes), dtype=torch.float32))
        draw_output_weight(self.weight, self.preset, rng)
        for group in self.order():
            draw_output_bias(self.bias(group), self.preset, rng)

    def common(self) -> None:
        """Return None, because every gate has its own bias."""

    def bias(self, group: int) -> Tensor:
        """Return the group's part of the biases."""
        return self._of_group(self.biases, group)


@register("lstm-shared")
@final
class SharedLSTM(RecurrentGenerator):
    """Has one learned bias for all gates, b_k = b, as an LSTM with one output has.

    Gates differ only by the inputs and the memory that they receive.

    The published presets need nothing else. :meth:`start_from` must be able to set any log α, so it sets constants that
    are added gate by gate and never learned.
    """

    offsets: Tensor

    def build_biases(self, rng: torch.Generator | None) -> None:
        """Create the shared bias, and the constants, which are 0."""
        self.shared = nn.Parameter(torch.empty(1, dtype=torch.float32))
        self.register_buffer("offsets", torch.zeros(sum(self.sizes), dtype=torch.float32))
        draw_output_weight(self.weight, self.preset, rng)
        draw_output_bias(self.shared, self.preset, rng)

    def common(self) -> Tensor:
        """Return the shared bias."""
        return self.shared

    def bias(self, group: int) -> Tensor:
        """Return the group's part of the constants."""
        return self._of_group(self.offsets, group)
