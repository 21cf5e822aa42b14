"""Any channels: what every other method has to beat."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.filters import no_scores
from depl0.app.methods.registry import register
from depl0.gated import GatedModel


@register("random")
@final
class Random(Scored):
    """Scores are drawn: s_j ~ U(0, 1), from the seed of the run. Every group loses the same share."""

    reference = "Mittal, Bhardwaj, Khapra, Ravindran: Recovering from Random Pruning. WACV 2018"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return random numbers, drawn on the CPU so that they are the same on every device."""
        none = no_scores(gated)
        return torch.rand(len(none), generator=rng).to(none)
