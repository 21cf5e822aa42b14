"""``round_to="auto"``: the multiple of channels that pays on the device of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depl0.gates.threshold import BudgetKind
from depl0.latency.multiples import Runtime, multiples_that_pay, with_room
from depl0.select.freeze import least_share

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel


def choose_multiple(
    gated: GatedModel, budget: float | None = None, of: BudgetKind = "macs", runtime: Runtime = "pytorch"
) -> int:
    """Return the multiple that pays here, as far as the groups have room for it and the budget can be reached with it.

    ``budget`` is for networks that have none of their own; ``runtime`` is what the compact network will be run by.
    """
    if gated.budget is not None:
        budget, of = gated.budget.share, gated.budget.of
    dtype = next(p.dtype for p in gated.host.parameters() if p.is_floating_point())
    paying = multiples_that_pay(gated.device, dtype, runtime).paying
    candidates = with_room(paying, [group.size for group in gated.plan.groups])
    return next(n for n in candidates if n == 1 or budget is None or least_share(gated, of, n) <= budget)
