"""Network slimming."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from depl0.analysis.plan import FROZEN
from depl0.app.methods.base import Batches, Loss, Scored
from depl0.app.methods.filters import add_to_gates, no_scores, norm_weights
from depl0.app.methods.registry import register
from depl0.errors import InputError
from depl0.gated import GatedModel


@register("slimming")
@final
class Slimming(Scored):
    """The norms' scales γ are trained with an L1 penalty, and channels with a small scale go.

    Training: loss + λ·Σ|γ| over all scales that have a gate. Then s_j = |γ_j|, with one threshold for the network.
    """

    reference = "Liu, Li, Shen, Huang, Yan, Zhang: Learning Efficient ConvNets through Network Slimming, ICCV 2017"
    scope = "network"
    trains = True
    weight = 1e-4

    def check(self, gated: GatedModel) -> None:
        """Refuse a network with channels that no norm scales."""
        has_norm = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
        for gates, _ in norm_weights(gated):
            has_norm[gates[gates != FROZEN]] = True
        without = [group.name for group in gated.plan.groups if not bool(has_norm[group.gates].all())]
        if without:
            shown = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
            raise InputError(
                f"method 'slimming' needs a norm with a scale after every group, but {shown} has none "
                f"({len(without)} of {len(gated.plan.groups)} groups).",
                hint="choose the groups that have one (gates.groups), or another method, such as 'l1-norm'.",
            )

    @torch.no_grad()
    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return Σ|γ| of every gate's norms."""
        total = no_scores(gated)
        for gates, scale in norm_weights(gated):
            add_to_gates(total, gates, scale.abs())
        return total

    def term(self, gated: GatedModel) -> Tensor:
        """Return Σ|γ| of all channels that have a gate."""
        scales, has_gate = [], []
        for gates, scale in norm_weights(gated):
            scales.append(scale.float())
            has_gate.append(gates != FROZEN)
        flat = torch.cat(scales)
        return torch.dot(flat.abs(), torch.cat(has_gate).to(flat, non_blocking=True))
