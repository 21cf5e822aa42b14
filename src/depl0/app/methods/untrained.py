"""Gates for an untrained network, to predict the size and speed of the pruned network before training.

Channels are ordered by the norms of their filters within every group, so that all groups lose the same fraction.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from depl0.app.methods.base import rank_within_groups
from depl0.app.methods.weights import sum_over_filters
from depl0.gated import GatedModel, attach
from depl0.gates.threshold import BudgetKind
from depl0.select.gates import check_budget, select_gates
from depl0.select.latency import select_within_latency


def rank_scores(gated: GatedModel) -> Tensor:
    """Return scores from 0 to 1: the rank of each gate's filter norms within its group."""
    return rank_within_groups(gated.plan, sum_over_filters(gated, lambda rows: rows.square().sum(1))).cpu()


def attach_untrained(model: nn.Module, example: Tensor, groups: str = "all") -> GatedModel:
    """Attach gates with rank scores to a network."""
    gated = attach(model, example, generator="independent", groups=groups)
    gated.generator.start_from(rank_scores(gated) + 6.0)  # all open, so that kept channels keep their weights
    return gated


def cut_untrained(
    gated: GatedModel, budget: float, of: BudgetKind = "macs", round_to: int = 1
) -> tuple[nn.Module, dict[str, Any] | None]:
    """Return the compact network that meets a budget; for latency, also the record of the latency search."""
    gated.free_gates()
    network, config = gated.snapshot(), gated.config.changed(budget=budget, of=of, round_to=round_to)
    check_budget(network, config)
    found, record = select_within_latency(network, config) if of == "latency" else (select_gates(network, config), None)
    return network.extract(found.gates, config.remove_blocks), record
