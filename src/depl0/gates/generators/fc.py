"""Generators of fully connected layers, and independent gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Generator, Memory, register
from depl0.gates.generators.presets import Preset


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

    activation: ClassVar[Callable[[Tensor], Tensor]]
    """f"""

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
        hidden = type(self).activation(self.hidden[group](previous))
        return cast(Affine, self.output[group])(hidden), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return cast(Affine, self.output[group]).bias


@register("fc-relu")
@final
class FCReLU(TwoLayerFC):
    """Two layers with a ReLU between them: FC(c₁, 2·c₂) ReLU FC(2·c₂, c₂)."""

    activation = torch.relu


@register("fc-tanh")
@final
class FCTanh(TwoLayerFC):
    """Two layers with a tanh between them: FC(c₁, 2·c₂) tanh FC(2·c₂, c₂)."""

    activation = torch.tanh


@register("independent")
@final
class Independent(Generator):
    """Computes log α = b: one free, unbounded number for each gate (Louizos et al., 2018)."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create one flat vector for all gates."""
        self.log_alpha = nn.Parameter(torch.empty(sum(self.sizes), dtype=torch.float32))
        for group in self.order():
            draw_output_bias(self.bias(group), self.preset, rng)

    def step(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return one group's log α, which does not depend on the previous group."""
        return self.bias(group), memory

    def bias(self, group: int) -> Tensor:
        """Return the group's part of the flat vector."""
        return self.log_alpha.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    def forward(self) -> Tensor:
        """Return the flat log α of all gates in plan order."""
        return self.log_alpha.view(-1)

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the parameters to this flat log α."""
        self.log_alpha.copy_(self._checked_start(log_alpha))


# -- layers ------------------------------------------------------------------------------------------------------------


@final
class Affine(nn.Module):
    """Computes W·x + b of one vector; with ``mean``, W·x is divided by the input size.

    Parameters are created uninitialised.
    """

    def __init__(self, inputs: int, outputs: int, *, mean: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=torch.float32))
        self.inputs = inputs
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        """Return W·x + b."""
        # Scaling the vector is cheaper than addmv's alpha, which costs a multiplication of the whole matrix backward.
        return torch.addmv(self.bias, self.weight, x * (1 / self.inputs) if self.mean else x)


def output_layer(inputs: int, outputs: int, preset: Preset, rng: torch.Generator | None) -> Affine:
    """Create the output layer, which computes log α. If the preset has a start, ``start_from`` must set its bias."""
    layer = Affine(inputs, outputs, mean=preset.mean_input)
    with torch.no_grad():
        draw_output_weight(layer.weight, preset, rng)
        draw_output_bias(layer.bias, preset, rng)
    return layer


def hidden_layer(inputs: int, outputs: int, preset: Preset, rng: torch.Generator | None) -> Affine:
    """Create a hidden layer."""
    layer = Affine(inputs, outputs, mean=preset.mean_input)
    with torch.no_grad():
        layer.weight.copy_(_as_linear(layer.weight, preset, rng))
        if preset.start is None:
            layer.bias.normal_(preset.bias_mean, preset.bias_std, generator=rng)
        else:
            layer.bias.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=rng)
    return layer


@torch.no_grad()
def draw_output_weight(weight: Tensor, preset: Preset, rng: torch.Generator | None) -> None:
    """Initialise the weight of an output layer, of shape (outputs, inputs)."""
    if preset.initial_weight is None:
        weight.copy_(_as_linear(weight, preset, rng))
    else:
        weight.uniform_(-preset.initial_weight, preset.initial_weight, generator=rng)


@torch.no_grad()
def draw_output_bias(bias: Tensor, preset: Preset, rng: torch.Generator | None) -> None:
    """Initialise the bias of an output layer."""
    if preset.start is None:
        bias.normal_(preset.bias_mean, preset.bias_std, generator=rng)
    else:
        bias.zero_()


def _as_linear(weight: Tensor, preset: Preset, rng: torch.Generator | None) -> Tensor:
    """Sample a weight whose W·x has the scale of a fresh ``torch.nn.Linear``, even if W·x is a mean."""
    inputs = weight.shape[1]
    limit = math.sqrt(inputs) if preset.mean_input else 1 / math.sqrt(inputs)
    return torch.empty_like(weight).uniform_(-limit, limit, generator=rng)
