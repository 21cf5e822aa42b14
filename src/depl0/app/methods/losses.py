"""Methods that score channels by what the loss, or the next layers, would miss."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored, register
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration
from depl0.search.scores.importance import squared_gradients
from depl0.search.scores.reconstruction import reconstruction_scores


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


@register("reconstruction")
@final
class Reconstruction(Scored):
    """A channel is worth what its readers cannot make up for, for what it costs (:mod:`.scores.reconstruction`).

    Optimal brain surgeon by channels: greedy, so that channels that stand in for each other are not all judged
    worthless, and across layers relative to the variance of what a layer's output becomes part of. No labels are used.
    """

    reference = "Hassibi, Stork: Second order derivatives for network pruning: Optimal Brain Surgeon. NIPS 1992"
    scope = "network"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the logarithm of every gate's error against that of its cost."""
        pairs: list[Any] = list(batches)
        inputs = Calibration(pairs, (), (), loss).inputs()
        return reconstruction_scores(gated, inputs, gated.config.of)
