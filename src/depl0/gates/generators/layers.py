"""Layers of the generators, with an initialisation that can be seeded without the global random state."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from depl0.gates.generators.presets import Preset


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
