"""Independent gates (L0-HC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from depl0.gates.generators.base import Generator, Memory
from depl0.gates.generators.layers import draw_output_bias
from depl0.gates.generators.registry import register


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

    def on_gates(self, draw: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return the same log α as :meth:`forward`, because no gate depends on another one."""
        return self.log_alpha.view(-1)

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the parameters to this flat log α."""
        self.log_alpha.copy_(self._checked_start(log_alpha))
