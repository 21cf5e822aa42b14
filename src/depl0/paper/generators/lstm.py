"""Generators that walk from gate to gate with a recurrent network (appendix B)."""

from __future__ import annotations

import abc
import math
from typing import final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Memory
from depl0.gates.generators.layers import draw_output_bias, draw_output_weight
from depl0.gates.generators.registry import register

_HIDDEN = 32


class RecurrentGenerator(BoundedGenerator):
    """Gives log α_k = c·tanh(w·h_k + b_k) with h_k, m_k = LSTM(x_{k−1}, h_{k−1}, m_{k−1}), gate after gate.

    x_{k−1} is what the gate before feeds, also inside a group; a group sees of the one before it the last gate's value
    and the memory (h, m). Weights are shared by all gates. The preset's ``carry_gradient`` acts on what is fed, and on
    the memory between groups.

    As slow as there are gates: the paper found it too slow and not to converge for the 4,224 gates of VGG16.
    """

    @abc.abstractmethod
    def build_biases(self, rng: torch.Generator | None) -> None:
        """Make what is added to w·h."""

    @abc.abstractmethod
    def common(self) -> Tensor | None:
        """Give what is added to w·h of every gate, if there is such a thing."""

    def build(self, rng: torch.Generator | None) -> None:
        """Make one cell, one output weight, and the biases."""
        self.cell = nn.LSTMCell(1, _HIDDEN, dtype=torch.float32, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.cell.parameters():
                parameter.uniform_(-1 / math.sqrt(_HIDDEN), 1 / math.sqrt(_HIDDEN), generator=rng)
        self.weight = nn.Parameter(torch.empty(1, _HIDDEN, dtype=torch.float32))
        self.build_biases(rng)

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Give w·h + b for each gate of a group."""
        return self._walk(self.bias(group), None, previous, memory)

    def set_pre_activation(self, group: int, wanted: Tensor, previous: Tensor, memory: Memory) -> None:
        """Set the biases one after the other, since each decides what the next gate is fed."""
        self._walk(self.bias(group), wanted, previous, memory)

    def _walk(self, biases: Tensor, wanted: Tensor | None, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Walk the gates of one group; with ``wanted`` pre-activations, set each bias on the way."""
        scale = 1 / _HIDDEN if self.preset.mean_input else 1.0
        hidden, cell = map(self.carry, memory) if memory else self.weight.new_zeros(2, _HIDDEN)
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
    """Has one learned bias b_k for each gate, so that it can start from any log α and go anywhere from there."""

    def build_biases(self, rng: torch.Generator | None) -> None:
        """Make a bias for each gate."""
        self.biases = nn.Parameter(torch.empty(sum(self.sizes), dtype=torch.float32))
        draw_output_weight(self.weight, self.preset, rng)
        for group in self.order():
            draw_output_bias(self.bias(group), self.preset, rng)

    def common(self) -> None:
        """Give nothing: every gate has its own."""

    def bias(self, group: int) -> Tensor:
        """Give the group's part of the biases."""
        return self._of_group(self.biases, group)


@register("lstm-shared")
@final
class SharedLSTM(RecurrentGenerator):
    """Has one learned bias for all gates, b_k = b, as an LSTM with one output has: gates differ by what came before.

    Under the published presets this is all. :meth:`start_from`, which has to be able to give any log α, sets constants
    that are added gate by gate and never learned.
    """

    offsets: Tensor

    def build_biases(self, rng: torch.Generator | None) -> None:
        """Make the one bias, and the constants, which are 0."""
        self.shared = nn.Parameter(torch.empty(1, dtype=torch.float32))
        self.register_buffer("offsets", torch.zeros(sum(self.sizes), dtype=torch.float32))
        draw_output_weight(self.weight, self.preset, rng)
        draw_output_bias(self.shared, self.preset, rng)

    def common(self) -> Tensor:
        """Give the one bias."""
        return self.shared

    def bias(self, group: int) -> Tensor:
        """Give the group's part of the constants."""
        return self._of_group(self.offsets, group)
