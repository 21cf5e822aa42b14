"""What a channel is worth for what it costs: the first scores of the gates, from a trained network.

First-order Taylor expansion of the loss at open gates says that closing gate j changes the loss by about ∂L/∂z_j. The
mean of its square over some batches, against what the gate costs, on a logarithmic scale,

    θ_j = log E[(∂L/∂z_j)²] − log(∂cost/∂z_j),

orders the gates as a knapsack would. The batches are small: over many images of a trained network the gradients cancel,
and only noise would be left. The scores are standardised, because only their order and distances matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from depl0.gated import GatedModel
from depl0.modes import evaluation_mode

Loss = Callable[[Any, Tensor], Tensor]

FEW = 16
"""images that a gradient is averaged over"""


def taylor_scores(gated: GatedModel, batches: Iterable[tuple[Tensor, Tensor]], loss: Loss, of: str) -> Tensor:
    """Return a standardised score for every gate. Modes, weights, gates and statistics are left as they are."""
    with evaluation_mode(gated):
        gates = torch.ones(gated.plan.num_gates, device=next(gated.host.parameters()).device)
        total, count = torch.zeros_like(gates), 0
        for images, labels in batches:
            for few, few_labels in zip(images.split(FEW), labels.split(FEW), strict=True):
                leaf = gates.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(loss(gated.with_gates(leaf, few), few_labels), leaf)
                total, count = total + gradient.square(), count + 1
    _, price = gated.expected_cost_gradient(gates, of)
    worth = (total / max(count, 1)).clamp_min(torch.finfo(torch.float32).tiny)
    return standardise(worth.log() - price.clamp_min(1.0).log())


def standardise(scores: Tensor) -> Tensor:
    """Give scores mean 0 and standard deviation 1, and cut what lies further out than 4."""
    spread = scores.std().nan_to_num() if scores.numel() > 1 else scores.new_zeros(())
    return ((scores - scores.mean()) / spread.clamp_min(1e-6)).clamp(-4, 4)
