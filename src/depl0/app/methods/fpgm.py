"""Filter pruning via geometric median."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.filters import sum_over_filters
from depl0.app.methods.registry import register
from depl0.gated import GatedModel


@register("fpgm")
@final
class GeometricMedian(Scored):
    """Filters near the geometric median of their layer can be replaced by the others.

    s_j = Σ_k ‖w_j − w_k‖₂ over all filters of the layer; the smallest is nearest to the median. Every group loses the
    same share.
    """

    reference = "He, Liu, Wang, Hu, Yang: Filter Pruning via Geometric Median for Deep CNNs Acceleration. CVPR 2019"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the distance of every gate's filters to all others of their layers."""
        exact = "donot_use_mm_for_euclid_dist"  # the fast form loses small distances
        return sum_over_filters(gated, lambda rows: torch.cdist(rows, rows, compute_mode=exact).sum(1))
