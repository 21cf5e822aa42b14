"""The filters behind every gate: what the methods that look at weights have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.normalization import GroupNorm

from depl0.analysis.plan import FROZEN
from depl0.gated import GatedModel


def add_to_gates(total: Tensor, gates: Tensor, values: Tensor) -> None:
    """Add the values of a layer's positions to the scores of their gates, in place; positions without one are lost."""
    gates = gates.to(total.device)
    has_gate = gates != FROZEN
    total.index_add_(0, gates[has_gate], values.to(total)[has_gate])


def no_scores(gated: GatedModel) -> Tensor:
    """Return a zero for every gate, where the host is."""
    device = next(gated.host.parameters()).device
    return torch.zeros(gated.plan.num_gates, device=device, dtype=torch.float32)


def filters(gated: GatedModel) -> Iterator[tuple[Tensor, Tensor]]:
    """Give (gate of every filter, filters as rows) of every convolution and linear layer that gives gated channels."""
    for name, dim in gated.plan.filters:
        weight = gated.host.get_parameter(name).detach()
        yield gated.plan.axes[(name, dim)], weight.movedim(dim, 0).flatten(1)


@torch.no_grad()
def sum_over_filters(gated: GatedModel, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the scores of all gates: ``measure`` gives a layer's filters, as rows, one number each."""
    total = no_scores(gated)
    for gates, rows in filters(gated):
        add_to_gates(total, gates, measure(rows.float()))
    return total


@torch.no_grad()
def zero_filters(gated: GatedModel, closed: Tensor) -> None:
    """Set the weights of all filters whose gates are closed to zero, in the host."""
    with_frozen = torch.cat([closed.cpu(), torch.zeros(1, dtype=torch.bool)])  # FROZEN = -1 picks the last entry
    for name, dim in gated.plan.filters:
        weight = gated.host.get_parameter(name)
        weight.index_fill_(dim, with_frozen[gated.plan.axes[(name, dim)]].nonzero().flatten().to(weight.device), 0.0)


def norm_weights(gated: GatedModel) -> Iterator[tuple[Tensor, Tensor]]:
    """Give (gate of every channel, γ) of every norm whose channels have gates."""
    for name, dim in gated.plan.axes:
        path, _, attribute = name.rpartition(".")
        module = gated.host.get_submodule(path)
        if attribute == "weight" and isinstance(module, (_NormBase, GroupNorm)):
            yield gated.plan.axes[(name, dim)], gated.host.get_parameter(name)
