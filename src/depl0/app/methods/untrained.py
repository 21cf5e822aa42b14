"""Gates for a network that nobody has trained yet: to know its size and speed before the work is done.

Channels are ordered by the norms of their filters, within every group, so that all groups lose the same share.
"""

from __future__ import annotations

from torch import Tensor, nn

from depl0.app.methods.base import rank_within_groups
from depl0.app.methods.weights import sum_over_filters
from depl0.gated import GatedModel, attach
from depl0.gates.threshold import BudgetKind
from depl0.search.latency_budget import FrozenToLatency, freeze_to_latency
from depl0.select.freeze import check_budget, freeze


def rank_scores(gated: GatedModel) -> Tensor:
    """Return scores from 0 to 1: the rank of each gate's filter norms within its group."""
    return rank_within_groups(gated.plan, sum_over_filters(gated, lambda rows: rows.square().sum(1))).cpu()


def attach_untrained(model: nn.Module, example: Tensor, groups: str = "all") -> GatedModel:
    """Put gates with rank scores on a network."""
    gated = attach(model, example, generator="independent", groups=groups)
    gated.generator.start_from(rank_scores(gated) + 6.0)  # all open, so that kept channels keep their weights
    return gated


def cut_untrained(
    gated: GatedModel, budget: float, of: BudgetKind = "macs", round_to: int = 1
) -> tuple[nn.Module, FrozenToLatency | None]:
    """Return the compact network that keeps a budget; for latency, also how it was found."""
    found = None
    gated.free_gates()
    if of == "latency":
        gated.time_layers()
    check_budget(gated, budget, of, round_to)
    if of == "latency":
        found = freeze_to_latency(gated, gated.host, gated.example, budget, round_to)
    else:
        freeze(gated, budget, of, round_to=round_to)
    return gated.extract(), found
