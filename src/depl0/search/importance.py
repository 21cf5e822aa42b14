"""Channel importance per cost by Taylor expansion: the initial scores of the gates, from a trained network.

By a first-order Taylor expansion of the loss at open gates, closing gate j changes the loss by about ∂L/∂z_j. The mean
of its square over some batches, relative to the cost of the gate, on a logarithmic scale,

    θ_j = log E[(∂L/∂z_j)²] − log(∂cost/∂z_j),

orders the gates as a knapsack would. The batches are small: over many images of a trained network the gradients
cancel, and only noise would remain. The scores are standardised, because only their order and distances matter.

Without labels, L is a random projection of the outputs: the mean square then measures the change of the outputs
themselves.

Each gate is scored alone, with all others open. That underestimates a layer with redundant channels: closing one of
them has no effect, but closing all of them does. Therefore differences between groups are only counted in part.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from depl0._util.user_code import call_of_user
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates.threshold import BudgetKind, counted
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode
from depl0.search.calibration import Batches, Loss, split

TRUST = 0.5
"""Fraction of the differences between groups that is kept."""

FEW = 16
"""Number of images that a gradient is averaged over."""


def first_scores(gated: GatedModel, batches: Batches, loss: Loss | None, of: BudgetKind) -> Tensor:
    """Return a standardised score for every gate. Modes, weights, gates and statistics are not changed."""
    worth = squared_gradients(gated, batches, random_projection() if loss is None else loss)
    _, price = gated.expected.value_and_gradient(torch.ones_like(worth), counted(of))
    worth = worth.clamp_min(torch.finfo(torch.float32).tiny)
    least = 0.01 * float(price.mean()) if of == "latency" else 1.0  # measured tables have flat parts
    scores = worth.log() - price.clamp_min(least).log()
    return standardise(draw_together(scores, [group.size for group in gated.plan.groups], TRUST))


def squared_gradients(gated: GatedModel, batches: Batches, loss: Loss) -> Tensor:
    """Return E[(∂L/∂z_j)²] of every gate z_j at open gates, over few images at a time.

    Over many images of a trained network the gradients cancel, and only noise would remain. Modes, weights, gates and
    statistics are not changed.
    """
    gates = torch.ones(gated.plan.num_gates, device=gated.device)
    gradients: list[Tensor] = []
    with evaluation_mode(gated):
        for batch in batches:
            for inputs, targets in split(tuple(batch), FEW):
                leaf = gates.clone().requires_grad_()
                outputs = ExampleInputs.of(inputs).run(partial(gated.call_with_gates, leaf))
                value = call_of_user("loss", "while channels were scored", loss, outputs, targets)
                gradients += torch.autograd.grad(value, leaf)
    return torch.stack(gradients).square().mean(0) if gradients else torch.zeros_like(gates)


def random_projection() -> Loss:
    """Return a loss without targets: the outputs along random directions, which are the same for every call."""
    rng = torch.Generator().manual_seed(0)

    def along(output: Tensor) -> Tensor:
        direction = torch.randn(output.shape, generator=rng).to(output.device)
        return torch.dot(direction.flatten(), output.float().flatten()) / math.sqrt(max(output.numel(), 1))

    def loss(outputs: Any, _: Any) -> Tensor:
        numbers = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
        if not numbers:
            raise InputError(
                "the network's outputs hold no tensor of numbers to judge channels by.",
                hint="pass a loss, and (inputs, targets) as batches.",
            )
        return torch.stack([along(number) for number in numbers]).sum()

    return loss


def draw_together(scores: Tensor, sizes: list[int], trust: float) -> Tensor:
    """Move the mean of every group towards the mean of all gates, so that ``trust`` of the distance remains.

    >>> draw_together(torch.tensor([0.0, 2.0, 10.0]), [2, 1], trust=0.0).tolist()
    [3.0, 5.0, 4.0]
    """
    middle = scores.mean()
    return torch.cat([part - (1 - trust) * (part.mean() - middle) for part in scores.split(sizes)])


def standardise(scores: Tensor) -> Tensor:
    """Standardise scores to mean 0 and standard deviation 1, clipped to ±4."""
    spread = scores.std().nan_to_num() if scores.numel() > 1 else scores.new_zeros(())
    return ((scores - scores.mean()) / spread.clamp_min(1e-6)).clamp(-4, 4)
