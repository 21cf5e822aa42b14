"""Methods that score channels by the change of the loss, or of the next layers' outputs, on removal."""

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
    """Scores a channel by the squared first-order change of the loss when it is removed.

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
    """Scores a channel by the error that refitting its consumer layers leaves, relative to its cost.

    See :mod:`.scores.reconstruction`. This is optimal brain surgeon for channels. It is greedy, so that of several
    redundant channels not all get a low score. Across layers, errors are relative to the variance of the sum that the
    layer's output is part of. No labels are used.
    """

    reference = "Hassibi, Stork: Second order derivatives for network pruning: Optimal Brain Surgeon. NIPS 1992"
    scope = "network"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the log of every gate's error minus the log of its cost."""
        pairs: list[Any] = list(batches)
        inputs = Calibration(pairs, (), (), loss).inputs()
        return reconstruction_scores(gated, inputs, gated.config.of)
