"""Selection of the gates to keep: one function from scores and configuration to gates.

:func:`select_gates` reads a :class:`Snapshot` and changes nothing. Without a budget, the evaluation gates are kept.
With a budget, gates are opened in the order of their scores until the pruned model reaches the budget. Then the next
gates that still fit are opened, because whole channels leave a remainder. Every group keeps at least ``min_share`` of
its channels, whatever their importance. With ``round_to`` each group keeps a multiple of that many channels
(:mod:`.rounding`). For a latency budget, the pruned model is timed in a search around this selection (:mod:`.latency`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depl0.config import GateConfig
from depl0.errors import GateError, InputError
from depl0.select.rounding import round_to_nearest, round_within
from depl0.select.snapshot import Snapshot

FILL_TRIES = 200


@dataclass(frozen=True)
class Selection:
    """The gates that were selected."""

    gates: Tensor
    forced: int
    """Number of open gates that the budget closed."""


def select_gates(network: Snapshot, config: GateConfig, scores: Tensor | None = None) -> Selection:
    """Select the gates to keep, by ``config.budget``, ``of``, ``round_to``, ``min_share`` and ``remove_blocks``.

    Args:
        network: the gated model. Fixed gates are only rounded.
        config: the budget and the rules.
        scores: one score for each gate. None: log α, and open gates keep their value; with scores they are 1.

    Raises:
        GateError: ``min_share`` costs more than the budget.
    """
    gates = network.gates if scores is None else torch.ones(network.plan.num_gates)
    order = network.log_alpha if scores is None else scores.cpu()
    fits_already = config.budget is None or (network.is_fixed and scores is None)
    is_open = gates > 0 if fits_already else _best_within(network, config, order)
    if config.budget is None and not network.is_fixed:
        is_open = is_open | _least_open(network, config, order)
    if config.round_to > 1 and config.budget is None:
        is_open = round_to_nearest(network, config, order, is_open)
    elif config.round_to > 1:
        is_open = round_within(network, config, order, is_open)
    elif not fits_already:
        _fill(network, config, order, is_open)
    values = torch.where(is_open, torch.where(gates > 0, gates, 1.0), 0.0)
    forced = 0 if config.budget is None else int(((gates > 0) & ~is_open).sum())
    return Selection(values, forced)


def _best_within(network: Snapshot, config: GateConfig, scores: Tensor) -> Tensor:
    """Open as many of the best gates as the budget allows."""
    order, least = _candidates(network, config, scores)
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(network, config, _opened(network, order[:middle])) else (low, middle - 1)
    if low < least:
        raise GateError(
            f"a budget of {config.budget:g} of the {config.of} and min_share={config.min_share!r} cannot both be met.",
            hint="use a larger budget or a smaller min_share.",
        )
    return _opened(network, order[:low])


def _fill(network: Snapshot, config: GateConfig, scores: Tensor, is_open: Tensor) -> None:
    """Open the best closed gates that still fit, in place, except in groups that will be removed as a whole."""
    order, _ = _candidates(network, config, scores)
    rest = order[int(is_open.sum()) :]
    if config.remove_blocks:
        rest = rest[~_removable_groups(network, is_open)[rest]]
    for gate in rest[:FILL_TRIES].tolist():
        is_open[gate] = True
        if not _fits(network, config, is_open):
            is_open[gate] = False


def _removable_groups(network: Snapshot, is_open: Tensor) -> Tensor:
    """Return the gates of closed groups that can be removed while the outputs still depend on the inputs.

    One gate of every other closed group is opened again, because one of its channels is kept anyway.
    """
    without = torch.zeros_like(is_open)
    for group in network.plan.groups:
        if bool(is_open[group.gates].any()):
            continue
        without[group.gates] = True
        if not network.depends_on_input((~without).float()):
            without[group.gates] = False
    return without


def _candidates(network: Snapshot, config: GateConfig, scores: Tensor) -> tuple[Tensor, int]:
    """Return the gates that can be opened beyond ``min_share``, best first, and the number that ``min_share`` opens."""
    order = scores.argsort(descending=True, stable=True)
    order = order[~network.removed[order]]
    is_least = _least_open(network, config, scores)[order]
    return torch.cat([order[is_least], order[~is_least]]), int(is_least.sum())


def _least_open(network: Snapshot, config: GateConfig, scores: Tensor) -> Tensor:
    """Return the best gates of every group, as many as ``min_share`` requires."""
    is_open = torch.zeros(network.plan.num_gates, dtype=torch.bool)
    for group in network.plan.groups:
        order = scores[group.gates].argsort(descending=True, stable=True) + group.offset
        is_open[order[~network.removed[order]][: config.min_gates(group.name, group.size)]] = True
    return is_open


def _opened(network: Snapshot, gates: Tensor) -> Tensor:
    return torch.zeros(network.plan.num_gates, dtype=torch.bool).index_fill(0, gates, True)


def _fits(network: Snapshot, config: GateConfig, is_open: Tensor) -> bool:
    assert config.budget is not None
    return network.share(is_open, config.of) <= config.budget


def minimum_share(network: Snapshot, config: GateConfig) -> float:
    """Return the smallest reachable fraction of the cost: unprunable layers and one channel per group.

    With ``round_to`` or ``min_share``, more than one channel per group may be required.
    """
    closed = _least_open(network, config, network.log_alpha)
    if config.round_to > 1:
        closed = round_to_nearest(network, config.changed(remove_blocks=False), network.log_alpha, closed)
    return network.share(closed, config.of)


def check_budget(network: Snapshot, config: GateConfig) -> None:
    """Raise InputError if the budget cannot be reached."""
    assert config.budget is not None
    minimum = minimum_share(network, config)
    if config.budget < minimum:
        layers, means = "unprunable layers", []
        if config.min_share:
            layers = f"unprunable layers and min_share={config.min_share!r}"
            means.append("lower min_share")
        if config.groups != "all":
            means.append("prune more groups (groups='all')")
        if config.round_to > 1:
            means.append("round to fewer channels")
        raise InputError(
            f"a budget of {config.budget:g} of the {config.of} is infeasible: {layers} account for {minimum:.3f}.",
            hint=f"{', or '.join([f'use at least {minimum + 0.005:.2f}', *means])}.",
        )
