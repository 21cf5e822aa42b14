"""Scoring, cutting and refitting in rounds, so that later rounds score the network that earlier ones left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from depl0._util.distributed import all_reduce_mean
from depl0._util.process import warn_caller
from depl0.config import GateConfig
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration
from depl0.search.freezing import Freezing, freeze_network
from depl0.search.reconstruction import reconstruction_scores
from depl0.select.gates import minimum_share

MIN_SHARE = 0.1
"""Smallest fraction of every group's channels: scores alone may close nearly all of them, e.g. in a gated MLP."""
MULTIPLE, WIDE = 8, 96
"""Channels are kept in multiples of 8 by default if most of them are in groups of at least this size."""
ROUND = 0.75
"""Approximate fraction of the previous round's cost that a round keeps."""


def cut_in_rounds(
    gated: GatedModel,
    original: nn.Module,
    inputs: list[Any],
    budgets: Sequence[float],
    config: GateConfig,
    given: Collection[str],
    report: Callable[[str], None] = lambda stage: None,
) -> Iterator[tuple[float, Freezing]]:
    """Score, cut and refit in rounds; yield every budget, from the largest to the smallest, with its frozen gates.

    Extract the network of a budget before continuing the iteration.

    Args:
        gated: the gated model; its host is refitted.
        original: a copy of the network, whose outputs are the target.
        inputs: calibration inputs.
        budgets: the fractions of the cost to keep.
        config: the rules for the selection of gates.
        given: the fields of ``config`` that the user has set; others may get their defaults.
        report: called with the name of every stage.
    """
    once = Calibration(inputs, inputs, inputs)
    rounds = round_shares(budgets) if config.of != "latency" else sorted(set(budgets), reverse=True)
    for number, share in enumerate(rounds, 1):
        name = f", round {number} of {len(rounds)}" if len(rounds) > 1 else ""
        report(f"scoring{name}")
        target = max(budget for budget in budgets if budget <= share)
        chosen = _config_for(gated, config, share, given, rounded=share in budgets)
        wanted = _config_for(gated, config, target, given, rounded=False)
        scores = all_reduce_mean(reconstruction_scores(gated, inputs, config.of, wanted))
        report(f"fitting{name}")
        freezing = freeze_network(gated, chosen, scores=scores, calibration=once, compensated=True, original=original)
        if share in budgets:
            if "min_share" not in given and not config.remove_blocks:
                _warn_of_narrow_groups(gated, freezing.gates, share)
            yield share, freezing
        if number < len(rounds):
            gated.free_gates()
            gated.remove(freezing.gates == 0)


def round_shares(budgets: Sequence[float]) -> list[float]:
    """Return the fraction of the cost after every round; all budgets are among them.

    >>> [round(share, 2) for share in round_shares([0.25, 0.5])]
    [0.71, 0.5, 0.35, 0.25]
    """
    shares, last = [], 1.0
    for budget in sorted(set(budgets), reverse=True):
        count = max(1, round(math.log(budget / last) / math.log(ROUND)))
        shares += [last * (budget / last) ** (number / count) for number in range(1, count)] + [budget]
        last = budget
    return shares


def _config_for(
    gated: GatedModel, config: GateConfig, budget: float, given: Collection[str], *, rounded: bool
) -> GateConfig:
    """Return the configuration for one budget: unset fields get their defaults if the budget allows them."""
    config, network = config.changed(budget=budget), gated.snapshot()
    if not rounded:
        config = config.changed(round_to=1)
    defaults: list[dict[str, Any]] = []
    wide = sum(group.size for group in gated.plan.groups if group.size >= WIDE)
    if rounded and "round_to" not in given and config.of != "latency" and 2 * wide >= gated.plan.num_gates:
        defaults.append({"round_to": MULTIPLE})
    if "min_share" not in given and not config.remove_blocks:
        defaults.append({"min_share": MIN_SHARE})
    for default in defaults:
        changed = config.changed(**default)
        if max(minimum_share(network, each) for each in (changed, changed.changed(round_to=1))) <= budget:
            config = changed
    return config


def _warn_of_narrow_groups(gated: GatedModel, gates: Tensor, budget: float) -> None:
    """Warn about the groups that keep less than :data:`MIN_SHARE` of their channels."""
    kept = {group: int((gates[group.gates] > 0).sum()) or 1 for group in gated.plan.groups}
    narrow = [f"{g.name} ({n} of {g.size})" for g, n in kept.items() if n < math.ceil(MIN_SHARE * g.size)]
    if narrow:
        more = f" and {len(narrow) - 5} more" if len(narrow) > 5 else ""
        warn_caller(
            f"the budget of {budget:g} leaves less than {MIN_SHARE:.0%} of the channels of "
            f"{', '.join(narrow[:5])}{more}; ask for a larger one, or give min_share to choose what every group keeps."
        )
