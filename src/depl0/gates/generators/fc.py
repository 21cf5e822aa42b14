"""Generators of fully connected layers: the paper's selected one and its two deeper variants."""

from __future__ import annotations

import abc
from typing import cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Memory
from depl0.gates.generators.layers import Affine, draw_output_bias, hidden_layer, output_layer
from depl0.gates.generators.registry import register


@register("fc")
@final
class FC(BoundedGenerator):
    """Computes log α_l = c·tanh(W_l·x_{l−1} + b_l), with the previous group's output x_{l−1} (paper, section 3.4)."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create one layer for each group."""
        layers = {g: output_layer(self.inputs(g), self.sizes[g], self.preset, rng) for g in self.order()}
        self.layers = nn.ModuleList(layers[group] for group in sorted(layers))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return W·x + b."""
        return self._layer(group)(previous), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return self._layer(group).bias

    def _layer(self, group: int) -> Affine:
        return cast(Affine, self.layers[group])


@register("bias")
@final
class Bias(BoundedGenerator):
    """Computes log α_l = c·tanh(b_l): ``fc`` with W fixed at 0, an ablation of the dependency between groups."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create one bias for each group."""
        biases = {group: torch.empty(self.sizes[group], dtype=torch.float32) for group in self.order()}
        for group in self.order():
            draw_output_bias(biases[group], self.preset, rng)
        self.biases = nn.ParameterList(nn.Parameter(biases[group]) for group in sorted(biases))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return b."""
        return self.bias(group), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return cast(Tensor, self.biases[group])


class TwoLayerFC(BoundedGenerator):
    """Computes log α_l = c·tanh(V_l·f(W_l·x_{l−1} + a_l) + b_l), with two hidden units for each gate (appendix B)."""

    @abc.abstractmethod
    def activation(self, hidden: Tensor) -> Tensor:
        """Return the activation f of the hidden layer."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create two layers for each group."""
        hidden, output = {}, {}
        for group in self.order():
            gates = self.sizes[group]
            hidden[group] = hidden_layer(self.inputs(group), 2 * gates, self.preset, rng)
            output[group] = output_layer(2 * gates, gates, self.preset, rng)
        self.hidden = nn.ModuleList(hidden[group] for group in sorted(hidden))
        self.output = nn.ModuleList(output[group] for group in sorted(output))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return V·f(W·x + a) + b."""
        hidden = self.activation(self.hidden[group](previous))
        return cast(Affine, self.output[group])(hidden), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return cast(Affine, self.output[group]).bias


@register("fc-relu")
@final
class FCReLU(TwoLayerFC):
    """Two layers with a ReLU between them: FC(c₁, 2·c₂) ReLU FC(2·c₂, c₂)."""

    def activation(self, hidden: Tensor) -> Tensor:
        """Return max(0, hidden)."""
        return torch.relu(hidden)


@register("fc-tanh")
@final
class FCTanh(TwoLayerFC):
    """Two layers with a tanh between them: FC(c₁, 2·c₂) tanh FC(2·c₂, c₂)."""

    def activation(self, hidden: Tensor) -> Tensor:
        """Return tanh(hidden)."""
        return torch.tanh(hidden)
