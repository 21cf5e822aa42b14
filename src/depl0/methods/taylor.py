"""First-order Taylor expansion of the loss."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.methods.base import Batches, Loss, Scored
from depl0.methods.filters import no_scores
from depl0.methods.registry import register
from depl0.modes import evaluation_mode

FEW = 16
"""images that a gradient is averaged over"""


def squared_gradients(gated: GatedModel, batches: Batches, loss: Loss) -> Tensor:
    """Return E[(∂L/∂z_j)²] of every gate z_j at open gates, over few images at a time.

    Over many images of a trained network the gradients cancel, and only noise would be left. Modes, weights, gates and
    statistics are left as they are.
    """
    with evaluation_mode(gated):
        gates = torch.ones_like(no_scores(gated))
        total, count = torch.zeros_like(gates), 0
        for images, labels in batches:
            for few, few_labels in zip(images.split(FEW), labels.split(FEW), strict=True):
                leaf = gates.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(loss(gated.with_gates(leaf, few), few_labels), leaf)
                total, count = total + gradient.square(), count + 1
    return total / max(count, 1)


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
