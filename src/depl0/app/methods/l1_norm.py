"""Filter magnitude."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.filters import sum_over_filters
from depl0.app.methods.registry import register
from depl0.gated import GatedModel


@register("l1-norm")
@final
class L1Norm(Scored):
    """A filter is worth the sum of its absolute weights: s_j = Σ|w_j|. Every group loses the same share."""

    reference = "Li, Kadav, Durdanovic, Samet, Graf: Pruning Filters for Efficient ConvNets. ICLR 2017"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return Σ|w| of every gate's filters."""
        return sum_over_filters(gated, lambda rows: rows.abs().sum(1))
