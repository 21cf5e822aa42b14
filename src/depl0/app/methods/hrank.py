"""Rank of feature maps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.feature_maps import maps_at_sites
from depl0.app.methods.filters import add_to_gates, no_scores
from depl0.app.methods.registry import register
from depl0.gated import GatedModel
from depl0.host.network import evaluation_mode

IMAGES = 500
"""images that ranks are averaged over, as in the paper"""


@register("hrank")
@final
class HighRank(Scored):
    """A channel whose maps have a low rank carries little information.

    s_j = E[rank(map_j)] over some images, each map a matrix, seen after the activation. Every group loses the same
    share.
    """

    reference = "Lin, Ji, Wang, Zhang, Zhang, Tian, Shao: HRank: Filter Pruning using High-Rank Feature Map. CVPR 2020"
    scope = "group"

    @torch.no_grad()
    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the mean rank of every gate's maps, over the first images of the batches."""
        total, count = no_scores(gated), 0
        with evaluation_mode(gated.host):
            for images, _ in batches:
                for gates, maps in maps_at_sites(gated, images[: IMAGES - count]):
                    ranks = torch.linalg.matrix_rank(maps.float())  # (images, channels)
                    add_to_gates(total, gates, ranks.float().sum(0))
                count += len(images[: IMAGES - count])
                if count >= IMAGES:
                    break
        return total / max(count, 1)
