"""The last word on which gates stay open: evaluation gates, made to keep the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from depl0.analysis.plan import Plan
from depl0.costs.terms import CostTerms
from depl0.errors import InputError
from depl0.gates.threshold import BudgetKind
from depl0.select.blocks import whole_blocks
from depl0.select.rounding import Within, round_gates

Fits = Callable[[Tensor], bool]
"""says whether a network with these gates open keeps the budget"""


class GatedNetwork(Protocol):
    """What has to be known of a gated network to decide about its gates."""

    plan: Plan

    @property
    def gone(self) -> Tensor:
        """Return which gates are closed for good."""

    def log_alpha(self) -> Tensor:
        """Return the location of every gate's distribution."""

    def evaluation_gates(self) -> Tensor:
        """Return the deterministic gates."""

    def rounded_gates(self, round_to: int, *, remove_blocks: bool = False) -> Tensor:
        """Return evaluation gates in multiples of ``round_to`` channels."""

    def share_of(self, gates: Tensor, of: BudgetKind, score: Tensor | None = None) -> float:
        """Return the share of the dense cost that is left with these gates."""

    def cost_terms(self, of: BudgetKind) -> CostTerms | None:
        """Return a cost as terms of decided gates, where it has them."""

    def expected_cost_gradient(self, open_probability: Tensor, kind: BudgetKind) -> tuple[Tensor, Tensor]:
        """Return the expected cost, and what every gate adds to it."""

    def reacts(self, gates: Tensor) -> bool:
        """Tell whether the outputs still depend on the inputs with these gates."""

    def start_from(self, scores: Tensor) -> None:
        """Let the generator give these scores."""

    def fix_gates(self, values: Tensor) -> None:
        """Use these gates from now on."""


@dataclass(frozen=True)
class Frozen:
    """The gates a search has arrived at."""

    gates: Tensor
    forced: int
    """gates that the budget closed although the evaluation rule had them open"""


def least_share(gated: GatedNetwork, of: BudgetKind, round_to: int = 1) -> float:
    """Return the share of the cost that stays at least: frozen layers, and one channel, or N, of each group."""
    closed = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    if round_to > 1:
        closed = round_gates(gated.plan, closed, gated.log_alpha().detach().cpu(), round_to)
    return gated.share_of(closed.float(), of)


def check_budget(gated: GatedNetwork, budget: float, of: BudgetKind, round_to: int = 1) -> None:
    """Refuse a budget that cannot be reached."""
    least = least_share(gated, of, round_to)
    if budget < least:
        fewer = " and round to fewer channels" if round_to > 1 else ""
        raise InputError(
            f"a budget of {budget:g} of the {of} cannot be reached: what cannot be pruned already costs {least:.3f}.",
            hint=f"ask for at least {least + 0.005:.2f}, or prune more groups (groups='all'){fewer}.",
        )


def freeze(
    gated: GatedNetwork, budget: float | None, of: BudgetKind, remove_blocks: bool = False, *, round_to: int = 1
) -> Frozen:
    """Fix the gates of a finished search (:func:`final_gates`)."""
    frozen = final_gates(gated, budget, of, remove_blocks, round_to=round_to)
    gated.fix_gates(frozen.gates)
    return frozen


def final_gates(
    gated: GatedNetwork, budget: float | None, of: BudgetKind, remove_blocks: bool = False, *, round_to: int = 1
) -> Frozen:
    """Return the gates that a search ends with.

    Without a budget these are the evaluation gates. With one, the best gates in order of their scores are open, as many
    as the budget allows for the compact network, and then the next ones that still fit where whole channels leave room.
    With ``remove_blocks``, closed groups that the network can do without stay closed.
    With ``round_to`` every group keeps a multiple of so many channels, or all (:mod:`depl0.select.rounding`).
    """
    if budget is None:
        return Frozen(gated.rounded_gates(round_to, remove_blocks=remove_blocks).cpu(), 0)
    gates = gated.evaluation_gates().cpu()
    is_open = open_within(gated, gated.log_alpha().detach().cpu(), budget, of, remove_blocks, round_to=round_to)
    values = torch.where(is_open, torch.where(gates > 0, gates, 1.0), 0.0)
    return Frozen(values, int(((gates > 0) & ~is_open).sum()))


def freeze_by(
    gated: GatedNetwork,
    scores: Tensor,
    budget: float,
    of: BudgetKind,
    remove_blocks: bool = False,
    *,
    round_to: int = 1,
) -> Frozen:
    """Fix the gates by scores of one's own (:func:`gates_by`)."""
    frozen = gates_by(gated, scores, budget, of, remove_blocks, round_to=round_to)
    gated.fix_gates(frozen.gates)
    return frozen


def gates_by(
    gated: GatedNetwork,
    scores: Tensor,
    budget: float,
    of: BudgetKind,
    remove_blocks: bool = False,
    *,
    round_to: int = 1,
) -> Frozen:
    """Return gates by scores of one's own: the best are wholly open, as many as the budget allows.

    The scores also become the gates' log α, because that is what decides which channel of a closed group stays.
    """
    gated.start_from(scores)
    is_open = open_within(gated, scores, budget, of, remove_blocks, round_to=round_to)
    return Frozen(is_open.float(), int((~is_open).sum()))


def open_within(
    gated: GatedNetwork,
    scores: Tensor,
    budget: float,
    of: BudgetKind,
    remove_blocks: bool = False,
    *,
    round_to: int = 1,
) -> Tensor:
    """Tell which gates stay open: the best in order of their scores, and then the next ones that still fit."""
    scores = scores.cpu()
    order = scores.argsort(descending=True, stable=True)
    order = order[~gated.gone[order]]
    fits = partial(_fits, gated, budget, of, gated.log_alpha().detach().cpu())
    keep = _largest_prefix(gated.plan.num_gates, order, fits)
    is_open = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    is_open[order[:keep]] = True
    if round_to > 1:
        limit = within(gated, budget, of)
        return round_gates(gated.plan, is_open, scores, round_to, limit, may_vanish=remove_blocks, gone=gated.gone)
    rest = order[keep:]
    if remove_blocks:
        rest = rest[~whole_blocks(gated.plan, is_open, gated.reacts)[rest]]
    _fill(is_open, rest, fits)
    return is_open


def within(gated: GatedNetwork, budget: float, of: BudgetKind) -> Within:
    """Return a budget as rounding wants it."""
    log_alpha, device = gated.log_alpha().detach(), gated.gone.device
    terms = gated.cost_terms(of)
    return Within(
        budget,
        lambda is_open: gated.share_of(is_open, of, log_alpha.cpu()),
        lambda is_open: gated.expected_cost_gradient(is_open.float().to(log_alpha.device), of)[1].to(device),
        terms,
        1.0 if terms is None else terms.total(torch.ones(gated.plan.num_gates)),
    )


def _fits(gated: GatedNetwork, budget: float, of: BudgetKind, log_alpha: Tensor, kept: Tensor) -> bool:
    return gated.share_of(kept, of, log_alpha) <= budget


def _largest_prefix(num_gates: int, order: Tensor, fits: Fits) -> int:
    """Return how many of the best gates can stay open within the budget."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        gates = torch.zeros(num_gates)
        gates[order[:middle]] = 1.0
        low, high = (middle, high) if fits(gates) else (low, middle - 1)
    return low


def _fill(is_open: Tensor, candidates: Tensor, fits: Fits, tries: int = 200) -> None:
    """Open the best closed gates that still fit, in place."""
    for gate in candidates[:tries].tolist():
        is_open[gate] = True
        if not fits(is_open.float()):
            is_open[gate] = False
