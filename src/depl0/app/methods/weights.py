"""Methods that score channels by their weights: filters, or the scales of norms; and random scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.normalization import GroupNorm

from depl0.analysis.plan import NO_GATE
from depl0.app.methods.base import Batches, Loss, Scored, register
from depl0.errors import InputError
from depl0.gated import GatedModel


def add_to_gates(total: Tensor, gates: Tensor, values: Tensor) -> None:
    """Add the values of a layer's channels to the scores of their gates, in place; ungated channels are ignored."""
    gates = gates.to(total.device)
    has_gate = gates != NO_GATE
    total.index_add_(0, gates[has_gate], values.to(total)[has_gate])


def no_scores(gated: GatedModel) -> Tensor:
    """Return zeros for all gates, on the host's device."""
    device = next(gated.host.parameters()).device
    return torch.zeros(gated.plan.num_gates, device=device, dtype=torch.float32)


def filters(gated: GatedModel) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (gate of every filter, filters as rows) of every convolution and linear layer with gated outputs."""
    for name, dim in gated.plan.filters:
        weight = gated.host.get_parameter(name).detach()
        yield gated.plan.axes[(name, dim)], weight.movedim(dim, 0).flatten(1)


@torch.no_grad()
def sum_over_filters(gated: GatedModel, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the scores of all gates: ``measure`` maps a layer's filters, as rows, to one number each."""
    total = no_scores(gated)
    for gates, rows in filters(gated):
        add_to_gates(total, gates, measure(rows.float()))
    return total


@torch.no_grad()
def zero_filters(gated: GatedModel, closed: Tensor) -> None:
    """Set the weights of all filters whose gates are closed to zero, in the host."""
    with_no_gate = torch.cat([closed.cpu(), torch.zeros(1, dtype=torch.bool)])  # NO_GATE = -1 picks the last entry
    for name, dim in gated.plan.filters:
        weight = gated.host.get_parameter(name)
        weight.index_fill_(dim, with_no_gate[gated.plan.axes[(name, dim)]].nonzero().flatten().to(weight.device), 0.0)


def norm_weights(gated: GatedModel) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (gate of every channel, γ) of every norm whose channels have gates."""
    for name, dim in gated.plan.axes:
        path, _, attribute = name.rpartition(".")
        module = gated.host.get_submodule(path)
        if attribute == "weight" and isinstance(module, (_NormBase, GroupNorm)):
            yield gated.plan.axes[(name, dim)], gated.host.get_parameter(name)


@register("random")
@final
class Random(Scored):
    """Samples scores s_j ~ U(0, 1) from the seed of the run. Every group loses the same fraction."""

    reference = "Mittal, Bhardwaj, Khapra, Ravindran: Recovering from Random Pruning. WACV 2018"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return random numbers, sampled on the CPU so that they are the same on every device."""
        none = no_scores(gated)
        return torch.rand(len(none), generator=rng).to(none)


@register("l1-norm")
@final
class L1Norm(Scored):
    """Scores a filter by the sum of its absolute weights, s_j = Σ|w_j|. Every group loses the same fraction."""

    reference = "Li, Kadav, Durdanovic, Samet, Graf: Pruning Filters for Efficient ConvNets. ICLR 2017"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return Σ|w| of every gate's filters."""
        return sum_over_filters(gated, lambda rows: rows.abs().sum(1))


@register("fpgm")
@final
class GeometricMedian(Scored):
    """Filters near the geometric median of their layer can be replaced by the others.

    s_j = Σ_k ‖w_j − w_k‖₂ over all filters of the layer; the smallest is nearest to the median. Every group loses the
    same fraction.
    """

    reference = "He, Liu, Wang, Hu, Yang: Filter Pruning via Geometric Median for Deep CNNs Acceleration. CVPR 2019"
    scope = "group"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the distance of every gate's filters to all others of their layers."""
        exact = "donot_use_mm_for_euclid_dist"  # the fast form loses small distances
        return sum_over_filters(gated, lambda rows: torch.cdist(rows, rows, compute_mode=exact).sum(1))


@register("sfp")
@final
class SoftFilterPruning(Scored):
    """Sets the weakest filters to zero after every epoch of training; they remain trainable.

    s_j = ‖w_j‖₂; every group loses the same fraction, that of the budget from the first epoch on. A filter that was set
    to zero keeps its momentum, as in the authors' code, so that the next epoch may restore it. The batch norm after a
    zero filter has zero variance, and its gradient is 1/√ε ≈ 300 times too large; momentum repeats that for ten steps.
    On small networks such filters then grow a thousandfold and are selected, so gradients are clipped.
    """

    reference = "He, Kang, Dong, Fu, Yang: Soft Filter Pruning for Accelerating Deep CNNs. IJCAI 2018"
    scope = "group"
    trains = True
    clip_norm = 5.0

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the norm of every gate's filters."""
        return _norms(gated)

    def after_epoch(self, gated: GatedModel, keep: Callable[[Tensor], Tensor]) -> None:
        """Set the filters that exceed the budget to zero."""
        zero_filters(gated, ~keep(self.comparable(gated.plan, _norms(gated))))


def _norms(gated: GatedModel) -> Tensor:
    return sum_over_filters(gated, lambda rows: rows.norm(dim=1))


@register("slimming")
@final
class Slimming(Scored):
    """Trains the scales γ of norms with an L1 penalty and removes channels with a small scale.

    Training: loss + λ·Σ|γ| over all scales that have a gate. Then s_j = |γ_j|, with one threshold for the network.
    """

    reference = "Liu, Li, Shen, Huang, Yan, Zhang: Learning Efficient ConvNets through Network Slimming, ICCV 2017"
    scope = "network"
    trains = True
    weight = 1e-4

    def check(self, gated: GatedModel) -> None:
        """Raise if a channel is not scaled by a norm."""
        has_norm = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
        for gates, _ in norm_weights(gated):
            has_norm[gates[gates != NO_GATE]] = True
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
            has_gate.append(gates != NO_GATE)
        flat = torch.cat(scales)
        return torch.dot(flat.abs(), torch.cat(has_gate).to(flat, non_blocking=True))
