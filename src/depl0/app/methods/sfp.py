"""Soft filter pruning."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.filters import sum_over_filters, zero_filters
from depl0.app.methods.registry import register
from depl0.gated import GatedModel


@register("sfp")
@final
class SoftFilterPruning(Scored):
    """After every epoch of training the weakest filters are set to zero, and go on training.

    s_j = ‖w_j‖₂; every group loses the same share, that of the budget from the first epoch on. A filter that was set to
    zero moves on with the momentum it had, as in the authors' code, so that the next epoch may bring it back. Behind a
    zero filter a batch norm sees no variance, and its gradient is 1/√ε ≈ 300 times too large; momentum repeats that for
    ten steps. On small networks such filters then grow a thousandfold and win, so gradients are clipped.
    """

    reference = "He, Kang, Dong, Fu, Yang: Soft Filter Pruning for Accelerating Deep CNNs. IJCAI 2018"
    scope = "group"
    trains = True
    clip_norm = 5.0

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the norm of every gate's filters."""
        return _norms(gated)

    def after_epoch(self, gated: GatedModel, keep: Callable[[Tensor], Tensor]) -> None:
        """Set the filters that the budget has no room for to zero."""
        zero_filters(gated, ~keep(self.comparable(gated.plan, _norms(gated))))


def _norms(gated: GatedModel) -> Tensor:
    return sum_over_filters(gated, lambda rows: rows.norm(dim=1))
