"""Controls for ``fc``: each removes one property, to separate its effect from that of dependency.

=================  =====================================================================================
``fc-const``       W trains, but is fed on the first log α for ever: the start and the steps of ``fc``,
                   and no information from gate to gate
``fc-frozen``      W stays as it was drawn; only biases train
``fc-shuffled``    groups are walked in an order in which no two neighbours of the network follow each other
``independent-fc`` free numbers (L0-HC) that start at the first log α that ``fc`` has with the same seed
=================  =====================================================================================
"""

from __future__ import annotations

import math
from typing import cast, final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import BoundedGenerator, Generator, Memory, register
from depl0.gates.generators.fc import FC, Affine, output_layer
from depl0.gates.generators.presets import REACH


class _Layers(BoundedGenerator):
    """The layers of ``fc``, for controls to change."""

    def _make_layers(self, rng: torch.Generator | None) -> None:
        layers = {g: output_layer(self.inputs(g), self.sizes[g], self.preset, rng) for g in self.order()}
        self.layers = nn.ModuleList(layers[group] for group in sorted(layers))

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return W·x + b."""
        return cast(Affine, self.layers[group])(previous), memory

    def bias(self, group: int) -> Tensor:
        """Return b."""
        return cast(Affine, self.layers[group]).bias


@final
class FCConst(_Layers):
    """Computes log α_l = c·tanh(W_l·x_{l−1} + b_l), where x_{l−1} is the initial output of the previous group."""

    first: Tensor

    def build(self, rng: torch.Generator | None) -> None:
        """Create the layers, and store their initial log α."""
        self._make_layers(rng)
        self.register_buffer("first", torch.zeros(sum(self.sizes), dtype=torch.float32))
        with torch.no_grad():
            for _ in self.sizes:  # each iteration fixes the input of one more group
                self.first.copy_(self())

    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return W·x + b for the initial x, independent of the current output of the previous group."""
        place = self.order().index(group)
        if place > 0:
            previous = self.feed(self.first.split(list(self.sizes))[self.order()[place - 1]])
        return super().pre_activation(group, previous, memory)

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the biases so that this is the initial log α, and use it as the constant input."""
        limit = REACH * self.preset.bound
        self.first.copy_(self._checked_start(log_alpha).clamp(-limit, limit))
        super().start_from(log_alpha)


@final
class FCFrozen(_Layers):
    """Computes log α_l = c·tanh(W_l·x_{l−1} + b_l) with a W that is sampled once and never trained."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create the layers, and turn their weights into constants."""
        self._make_layers(rng)
        for layer in self.layers:
            weight = cast(Affine, layer).weight.detach()
            del layer.weight
            layer.register_buffer("weight", weight)


@final
class FCShuffled(_Layers):
    """Applies ``fc`` in another order of the groups, so that each group depends on a distant one."""

    def build(self, rng: torch.Generator | None) -> None:
        """Create the layers in this order."""
        self._make_layers(rng)

    def order(self) -> tuple[int, ...]:
        """Return the groups in steps of about 0.4 of their number, which visits each of them once."""
        count = len(self.sizes)
        stride = min((s for s in range(1, count + 1) if math.gcd(s, count) == 1), key=lambda s: abs(s - 0.4 * count))
        shuffled = tuple(place * stride % count for place in range(count))
        return shuffled if self.direction == "forward" else tuple(count - 1 - group for group in shuffled)


@final
class IndependentFC(Generator):
    """Computes log α = b, which starts from the initial log α of ``fc``."""

    def build(self, rng: torch.Generator | None) -> None:
        """Initialise ``fc``, store its initial log α, and discard it."""
        first = FC(self.sizes, self.direction, self.preset, rng)()
        self.log_alpha = nn.Parameter(first.detach())

    def step(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return one group's log α, independent of the previous groups."""
        return self.bias(group), memory

    def bias(self, group: int) -> Tensor:
        """Return the group's free parameters."""
        return self.log_alpha.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    def forward(self) -> Tensor:
        """Return the flat log α of all gates in plan order."""
        return self.log_alpha.view(-1)

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set this flat log α."""
        self.log_alpha.copy_(self._checked_start(log_alpha))


CONTROLS = {"fc-const": FCConst, "fc-frozen": FCFrozen, "fc-shuffled": FCShuffled, "independent-fc": IndependentFC}


def register_controls() -> None:
    """Make recipes accept the controls as generators."""
    for name, control in CONTROLS.items():
        register(name)(control)
