"""First-order Taylor expansion of the loss."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.registry import register
from depl0.gated import GatedModel
from depl0.search.scores.importance import squared_gradients


@register("taylor")
@final
class Taylor(Scored):
    """A channel is worth what the loss would change by without it, squared, to first order.

    s_j = E[(∂L/∂z_j · z_j)²] at z_j = 1, the mean over mini-batches; coupled layers share z_j, so that their
    contributions are added before the square. One threshold for the network.
    """

    reference = "Molchanov, Mallya, Tyree, Frosio, Kautz: Importance Estimation for Neural Network Pruning. CVPR 2019"
    scope = "network"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the mean squared gradient of every gate."""
        return squared_gradients(gated, batches, loss)
