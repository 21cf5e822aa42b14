"""``round_to="auto"``: the multiple of channels that pays on the device of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depl0.budgets.freeze import least_share
from depl0.budgets.threshold import BudgetKind
from depl0.latency.multiples import for_sizes, multiple_that_pays, smaller

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel


def choose_multiple(gated: GatedModel, budget: float | None = None, of: BudgetKind = "macs") -> int:
    """Return the multiple that pays here, as far as the groups have room for it and the budget can be reached with it.

    ``budget`` is for networks that have none of their own.
    """
    if gated.budget is not None:
        budget, of = gated.budget.share, gated.budget.of
    dtype = next(p.dtype for p in gated.host.parameters() if p.is_floating_point())
    found = for_sizes(multiple_that_pays(gated.device, dtype).channels, [g.size for g in gated.plan.groups])
    while found > 1 and budget is not None and least_share(gated, of, found) > budget:
        found = smaller(found)
    return found
